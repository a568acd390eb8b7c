"""The transformer example is what the tool writes, and every example is proven to train the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import prove
from migrate.prove.settings import Amp, Settings
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.pipeline import rewrite
from tests.waiting import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"
LAUNCHES = sorted(folder.name for folder in EXAMPLES.glob("launch_*"))
# One starts two processes whatever it is given, one joins a group only if it is not alone.
REPLICAS = {"launch_process": (2,), "launch_local_rank": (2, 4)}
CASES = [
    (name, replicas)
    for name in ("ddp_toy", "transformer", *LAUNCHES)
    for replicas in REPLICAS.get(name, (1, 2, 4))
]
# One block is compiled in half the time of two.
ARGS = {"transformer": ("--depth", "1")}


def test_after_is_what_the_tool_writes() -> None:
    done = rewrite(EXAMPLES / "transformer" / "before.py")
    assert done.data.decode() == (EXAMPLES / "transformer" / "after.py").read_text()
    # The checkout of this toolkit around the example is a library for it, not a part of its project.
    assert done.elsewhere == ()
    assert [code_of(note) for note in done.findings] == ["XLA210"]  # for speed, optional


@pytest.mark.long
@pytest.mark.parametrize(("name", "replicas"), CASES)
def test_an_example_trains_the_same(
    name: str, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains_the_same(name, replicas, "off", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_transformer_trains_the_same_in_bfloat16(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains_the_same("transformer", replicas, "bf16", monkeypatch)


def trains_the_same(name: str, replicas: int, amp: Amp, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the runs mirror: not all of the repository.
    monkeypatch.chdir(EXAMPLES / name)
    # Most of a run's time is compilation.
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    proof = prove(
        EXAMPLES / name / "before.py",
        EXAMPLES / name / "after.py",
        ARGS.get(name, ()),
        replicas=replicas,
        settings=Settings(amp=amp, timeout=LIMIT),
    )
    assert proof.verdict is ProofVerdict.MATCH, proof.message
    assert {step.rank for step in proof.steps} == set(range(replicas))
    assert proof.difference is None
