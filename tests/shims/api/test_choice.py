"""Which backend is taken and why, and that asking costs nothing."""

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import shims
from shims import tpu
from shims.api_errors import BackendMissingError, LaunchError
from shims.backends import gpus, processes
from shims.choice import Choice, Machine, choose, choose_for_cuda_code, require_devices
from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@dataclass(frozen=True)
class Described(Machine):
    """A machine with these devices and packages."""

    what: tuple[str, ...] = ()

    def tpu_chips(self) -> int:
        return self.what.count("a TPU")

    def cuda_devices(self) -> int:
        return self.what.count("CUDA")

    def has_package(self, name: str) -> bool:
        return name in self.what


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (["a TPU", "torch_xla", "torch_tpu", "CUDA"], "xla"),
        (["a TPU", "torch_tpu", "CUDA"], "tpu"),
        (["a TPU", "CUDA"], "cuda"),
        (["torch_xla", "CUDA"], "cuda"),
        (["torch_xla"], "cpu"),
        ([], "cpu"),
    ],
)
def test_the_order_is_tpu_cuda_cpu(what: list[str], name: str) -> None:
    chosen = choose({}, Described(tuple(what)))
    assert chosen.name == name
    assert chosen.why


def test_the_environment_decides_first() -> None:
    gpu = Described(("CUDA", "torch_xla"))
    assert choose({"MIGRATE_BACKEND": "cpu"}, gpu) == Choice("cpu", "MIGRATE_BACKEND=cpu")
    assert choose({"SHIMS_BACKEND": "simulate"}, gpu).name == "xla"
    assert choose({"SHIMS_BACKEND": "xla"}, gpu).name == "xla"
    # There torch.cuda answers, but it is the CPU.
    assert choose({"SHIMS_BACKEND": "cpu"}, gpu).name == "cpu"
    assert choose({"SHIMS_BACKEND": "simulate", "MIGRATE_BACKEND": "cuda"}, gpu).name == "cuda"


@pytest.mark.parametrize(
    ("name", "word"), [("gpu", "cpu, cuda, xla, tpu"), ("xla", "torch_xla"), ("cuda", "no CUDA")]
)
def test_a_forced_backend_that_is_not_there_is_refused(name: str, word: str) -> None:
    with pytest.raises(BackendMissingError, match=word):
        choose({"MIGRATE_BACKEND": name}, Described())


def test_a_tpu_is_found_by_its_files(tmp_path: Path) -> None:
    vendor = tmp_path / "sys/bus/pci/devices/0000:00:04.0/vendor"
    vendor.parent.mkdir(parents=True)
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev/vfio/0").touch()
    vendor.write_text("0x8086\n")
    assert not tpu.tpu_device_files(tmp_path)
    vendor.write_text("0x1ae0\n")
    assert tpu.tpu_device_files(tmp_path)


def test_cuda_code_as_it_is_needs_torch_xla_on_a_tpu() -> None:
    with pytest.raises(BackendMissingError, match="through torch_xla"):
        choose_for_cuda_code(machine=Described(("a TPU", "torch_tpu")))
    assert choose_for_cuda_code(machine=Described(("a TPU", "torch_xla"))) == "xla"
    assert choose_for_cuda_code("cpu", Described(("a TPU", "torch_xla"))) == "cpu"


def test_torch_xla_beside_torch_tpu_is_not_called_missing() -> None:
    both = Described(("a TPU", "torch_tpu", "torch_xla"))
    with pytest.raises(BackendMissingError, match="through torch_xla, not through torch_tpu") as it:
        choose_for_cuda_code("tpu", both)
    assert "install" not in str(it.value)


def test_the_launcher_imports_no_torch_where_there_is_no_gpu() -> None:
    if tpu.gpu_device_files():
        pytest.skip("there is a GPU: torch is asked how many it sees")
    program = "import sys, shims.choice; shims.choice.choose(); print('torch' in sys.modules)"
    assert run(program).stdout.strip() == "False"


def test_importing_shims_imports_no_torch() -> None:
    program = "import sys, shims; dir(shims); print({'torch', 'numpy'} & sys.modules.keys())"
    assert run(program).stdout.strip() == "set()"


def test_to_choose_does_not_start_the_xla_runtime() -> None:
    need_torch_xla()
    program = (
        "import shims, torch_xla; shims.backend(); shims.manual_seed(0)\n"
        "print(shims.backend(), torch_xla._XLAC._xla_runtime_is_initialized())"
    )
    done = run(program, MIGRATE_BACKEND="xla")
    assert done.stdout.strip() == "<xla: MIGRATE_BACKEND=xla> False", done.stderr


@pytest.mark.long
def test_a_runtime_in_use_before_launch_names_the_mistake() -> None:
    need_torch_xla()
    done = run("import shims; shims.rank(); shims.launch(print)", MIGRATE_BACKEND="xla")
    assert "LaunchError: the XLA runtime was in use before shims.launch" in done.stderr


@pytest.mark.parametrize("first", ["shims.log", "shims.guard"])
@pytest.mark.long_cases("shims.guard")
def test_a_function_stays_one_when_its_module_is_imported(first: str) -> None:
    program = f"import {first}; import shims; print(callable({first}))"
    assert run(program).stdout.strip() == "True"


def test_every_public_name_is_documented_and_typed() -> None:
    for name, home in shims._HOMES.items():
        if home not in ("ranks", "placement", "training", "rng", "distributed"):
            continue
        value = getattr(shims, name)
        assert inspect.isfunction(value), name
        assert inspect.getdoc(value), name
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty, name
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'all_reduec'"):
        _ = shims.all_reduec  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["0", "two"])
def test_a_number_of_ranks_that_is_none_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIGRATE_RANKS", text)
    with pytest.raises(LaunchError, match="at least 1"):
        processes.requested_ranks(None)
    assert processes.requested_ranks(3) == 3


@pytest.mark.parametrize("devices", [0, 1, 3])
def test_cuda_code_gets_no_more_ranks_than_gpus(devices: int) -> None:
    machine = Described(("CUDA",) * devices)
    with pytest.raises(LaunchError, match=f"--ranks {devices + 1}, .*--backend cpu") as refused:
        require_devices("cuda", devices + 1, machine)
    assert "\n" not in str(refused.value)
    require_devices("cuda", devices, machine)
    # Elsewhere every rank is a process of its own.
    require_devices("cpu", devices + 1, machine)


def test_each_rank_has_a_gpu_of_its_own() -> None:
    assert [gpus.of_rank(rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(LaunchError, match="no GPU for local rank 1: 1 GPU is here"):
        gpus.of_rank(1, 1)
    with pytest.raises(LaunchError, match="2 ranks requested, but 1 GPU is here"):
        gpus.require(2, 1)


def test_ranks_share_gpus_where_they_are_told_to() -> None:
    assert gpus.shared({"MIGRATE_SHARE_GPUS": "1"})
    assert not gpus.shared({})
    assert [gpus.of_rank(rank, 2, share=True) for rank in range(5)] == [0, 1, 0, 1, 0]
    gpus.require(5, 2, share=True)
    with pytest.raises(LaunchError, match="no GPUs are here"):
        gpus.require(1, 0, share=True)
    with pytest.raises(LaunchError, match="no GPUs are here"):
        gpus.of_rank(0, 0, share=True)
