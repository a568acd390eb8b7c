"""One program over the backends: its own assertions, and that all backends compute the same."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

PROGRAM = Path(__file__).parent / "programs" / "behaviors.py"
RANKS = 2


@dataclass(frozen=True)
class Outcome:
    backend: str
    folder: Path
    ranks: list[dict[str, Any]]


def run(backend: str, folder: Path) -> Outcome:
    forced = {"MIGRATE_BACKEND": backend, "MIGRATE_RANKS": str(RANKS)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **forced},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    return Outcome(backend, folder, ranks)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run("cpu", tmp_path_factory.mktemp("cpu"))


@pytest.fixture(
    scope="module", params=["xla", pytest.param("tpu", marks=pytest.mark.torch_tpu), "cuda"]
)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    if request.param == "xla":
        need_torch_xla()
    elif request.param == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"{RANKS} GPUs are needed")
    return run(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.long
def test_the_ranks_of_the_cpu_have_data_of_their_own(cpu: Outcome) -> None:
    first, second = cpu.ranks
    assert first["losses"] != second["losses"]
    # Of gradients that DDP has averaged.
    assert first["norms"] == second["norms"]
    assert first["losses"][-1] < first["losses"][0]


@pytest.mark.parametrize("quantity", ["losses", "norms"])
def test_training_is_the_same(cpu: Outcome, other: Outcome, quantity: str) -> None:
    for got, want in zip(other.ranks, cpu.ranks, strict=True):
        assert got[quantity] == pytest.approx(want[quantity], rel=1e-5)


@pytest.mark.parametrize("quantity", ["world", "host random", "scaler"])
def test_what_must_be_equal_is(cpu: Outcome, other: Outcome, quantity: str) -> None:
    assert [rank[quantity] for rank in other.ranks] == [rank[quantity] for rank in cpu.ranks]


def test_checkpoints_are_the_same(cpu: Outcome, other: Outcome) -> None:
    # In this process torch_xla is not imported: a tensor of XLA would not load.
    ours, theirs = (torch.load(outcome.folder / "last.pt") for outcome in (cpu, other))
    assert list(ours["model"]) == list(theirs["model"]) == ["embedding.weight", "head.weight"]
    for checkpoint in (ours, theirs):
        embedding, head = checkpoint["model"].values()
        assert embedding.device.type == "cpu"
        # Tied when saved, tied when loaded.
        assert embedding.data_ptr() == head.data_ptr()
    difference = theirs["model"]["embedding.weight"] - ours["model"]["embedding.weight"]
    # AdamW moves by the sign where a gradient is noise: see the example's test for equal weights.
    assert difference.norm() <= 1e-5 * ours["model"]["embedding.weight"].norm()
    state, expected = theirs["optimizer"]["state"][0], ours["optimizer"]["state"][0]
    assert state.keys() == expected.keys()
    assert state["step"] == expected["step"]
    torch.testing.assert_close(state["exp_avg"], expected["exp_avg"], rtol=1e-5, atol=1e-6)
