"""Written programs that are preempted or killed, and continue with the same numbers."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from migrate.launch.framework import Framework
from migrate.launch.program import CHECKPOINTS, Resume, read_program
from tests.train.toy import write_toy

PREEMPTED = 75
MODULES = ("train", "devices", "loss", "optimizer", "data", "checkpoints")


class Program:
    """The toy program in this process, imported once: its starts share compiled functions only."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, several: bool) -> None:
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(str(write_toy(folder, several=several)))
        import data
        import train

        self._data, self._train, self._patch = data, train, patch
        self.asked: list[int] = []  # updates whose batches were asked for

    def start(self, *words: str, killed_at: int | None = None, seed: int = 0) -> tuple[int, Any]:
        """Run it; its exit code, and the losses of each update, as text that holds every bit."""
        losses: dict[int, list[str]] = {}

        self.asked.clear()

        def hook(number: int) -> None:
            self.asked.append(number)
            if number == killed_at:
                signal.raise_signal(signal.SIGTERM)

        def report(number: int, *more: Any) -> None:
            *_, values, _ = more
            losses[number] = [float(x).hex() for x in values]

        self._patch.setattr(sys, "argv", ["train.py", *words])
        self._patch.setattr(self._data, "hook", hook)
        self._patch.setattr(self._data, "SEED", seed)
        self._patch.setattr(self._train, "report", report)
        try:
            self._train.main()
        except SystemExit as ended:
            return ended.code, losses
        return 0, losses


@pytest.fixture(scope="module", params=["an optimizer", "several optimizers"])
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CHECKPOINTS, raising=False)
        several = request.param == "several optimizers"
        yield Program(tmp_path_factory.mktemp("toy") / "program", patch, several=several)
    for name in MODULES:
        sys.modules.pop(name, None)
    signal.signal(signal.SIGTERM, handler)


def test_preempted_runs_have_the_losses_and_weights_of_an_uninterrupted_one(
    program: Program, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    code, expected = program.start("--save", str(whole))
    assert (code, sorted(expected)) == (0, list(range(12)))
    folder = str(tmp_path / "run")
    losses: dict[int, list[str]] = {}
    for update in sorted(random.Random(7).sample(range(12), 2)):
        code, more = program.start("--checkpoints", folder, "--every", "3", killed_at=update)
        assert code == PREEMPTED
        assert max(more) == update  # the update that was loaded is still computed
        losses |= more
    # What a kill in the middle of a write leaves is not read.
    (tmp_path / "run" / "12.orbax-checkpoint-tmp").mkdir()
    code, more = program.start("--checkpoints", folder, "--save", str(resumed))
    assert code == 0
    assert losses | more == expected
    assert not losses.keys() & more.keys()
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_run_that_is_ended_early_has_what_follows_its_last_update(program: Program) -> None:
    code, losses = program.start("--updates", "2")
    assert (code, sorted(losses)) == (0, [0, 1])
    assert program.asked == [0, 1, 2]  # an evaluation stands before the next batch


def test_a_run_is_not_continued_on_other_data(program: Program, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    assert program.start("--checkpoints", folder, "--updates", "2")[0] == 0
    code, losses = program.start("--checkpoints", folder, seed=1)
    assert "checkpoint of update 2: the data are not those of the run" in code
    assert not losses


def test_a_job_of_migrate_launch_takes_the_program(tmp_path: Path) -> None:
    job = read_program(write_toy(tmp_path / "program"))
    assert (job.framework, job.resume, job.style.joins_hosts) == (Framework.JAX, Resume.ORBAX, True)
    assert CHECKPOINTS in job.reads
