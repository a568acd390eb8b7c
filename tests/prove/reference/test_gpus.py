"""Where an original is recorded, and what its processes are told there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from migrate.prove.reference import gpus
from migrate.prove.settings import ON
from shims.api_errors import BackendMissingError
from shims.choice import Machine


@dataclass(frozen=True)
class WithGpus(Machine):
    """A machine with so many GPUs."""

    count: int = 0

    def tpu_chips(self) -> int:
        return 0

    def cuda_devices(self) -> int:
        return self.count


def test_the_gpus_that_are_there_are_taken() -> None:
    assert gpus.where({}, WithGpus(4)) == ("cuda", 4)
    assert gpus.where({}, WithGpus(0)) == ("cpu", 2)
    assert gpus.where({"MIGRATE_BACKEND": "cpu"}, WithGpus(4)) == ("cpu", 2)
    assert gpus.where({"MIGRATE_BACKEND": "cuda"}, WithGpus(1)) == ("cuda", 1)
    with pytest.raises(BackendMissingError, match="no CUDA device"):
        gpus.where({"MIGRATE_BACKEND": "cuda"}, WithGpus(0))


def test_a_run_sees_a_gpu_for_each_rank_and_no_other() -> None:
    assert gpus.environment(2, inherited={})["CUDA_VISIBLE_DEVICES"] == "0,1"
    some = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert gpus.environment(2, inherited=some)["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert gpus.environment(1, inherited={})[ON] == "cuda"


def test_tf32_is_left_to_the_script_unless_its_noise_is_measured() -> None:
    assert "NVIDIA_TF32_OVERRIDE" not in gpus.environment(1, inherited={})
    assert gpus.environment(1, tf32=False, inherited={})["NVIDIA_TF32_OVERRIDE"] == "0"
