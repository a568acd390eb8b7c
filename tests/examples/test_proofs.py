"""The transformer example is what the tool writes, and every example is proven to train the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.prove.proof import prove
from migrate.prove.settings import Settings
from migrate.prove.verdict import Verdict
from migrate.rewrite.engine import rewrite

EXAMPLES = Path(__file__).parents[2] / "examples"
LAUNCHES = sorted(folder.name for folder in EXAMPLES.glob("launch_*"))
# Starts its processes with `Process` itself, which `python -m shims` does not see by itself.
START = {"launch_process": "alone"}


def test_after_is_what_the_tool_writes() -> None:
    done = rewrite(EXAMPLES / "transformer" / "before.py")
    assert done.data.decode() == (EXAMPLES / "transformer" / "after.py").read_text()
    assert [note.message for note in done.findings] == []


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("name", ["ddp_toy", "transformer", *LAUNCHES])
def test_an_example_trains_the_same(name: str, replicas: int) -> None:
    folder = EXAMPLES / name
    settings = Settings(amp="off", start=START.get(name), timeout=250)
    proof = prove(folder / "before.py", folder / "after.py", replicas=replicas, settings=settings)
    assert proof.verdict is Verdict.EQUAL, proof.message
    assert {step.rank for step in proof.steps} == set(range(replicas))
    assert proof.difference is None
