"""Gives the judge a script's own recording in place of a program.

It must pass, and fail if values are changed.

    python benchmarks/t2j/replay.py SCRIPT…

The recorder then finds modules, batches and rollouts, and no limit refuses what is right.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.t2j import judge, tasks
from benchmarks.t2j.bands import MismatchError


class Replay:
    """The contract of a program's interface, answered out of a recording.

    Attributes:
        recording: what recorder.py recorded.
        change: what is done to an answer, by the name of the function; none by default.
    """

    def __init__(self, recording: dict[str, Any], change: dict[str, Callable[[Any], Any]]) -> None:
        self.recording, self.change = recording, change

    def _answer(self, name: str, value: Any) -> Any:
        return self.change[name](copy.deepcopy(value)) if name in self.change else value

    def load(self, weights: Any) -> int:
        """The number of the step at which the script has these weights."""
        steps = list(enumerate(self.recording["rounds"]))
        for number, step in steps:
            if step["before"] is weights:
                return number
        for number, step in steps:  # of a rollout: a copy
            if _key(step["before"]) == _key(weights):
                return number
        raise KeyError("unknown weights")

    def weights(self, state: int) -> Any:
        steps = self.recording["rounds"]
        return self._answer(
            "weights", steps[state]["before"] if state < len(steps) else self.recording["final"]
        )

    def _find(self, state: int, batch: Any, site: int) -> dict[str, Any]:
        for micro in self.recording["rounds"][state]["micro"]:
            if _key(micro["batch"], site) == _key(batch, site):
                found: dict[str, Any] = micro
                return found
        raise KeyError("unknown batch")

    def outputs(self, state: int, batch: Any, site: int) -> Any:
        return self._answer("outputs", self._find(state, batch, site)["outputs"])

    def loss_and_gradients(self, state: int, batch: Any, site: int) -> Any:
        micro = self._find(state, batch, site)
        return self._answer("loss_and_gradients", (micro["loss"], micro["gradients"]))

    def step(self, state: int, micro: Any, site: int, rollout: Any) -> Any:
        step = self.recording["rounds"][state]
        losses = [self._find(state, batch, site)["loss"] for batch in micro]
        report = {"losses": losses, "learning_rate": step["learning_rate"]}
        return state + 1, self._answer("step", report)

    def batches(self) -> Iterator[Any]:
        return iter([[m["batch"] for m in step["micro"]] for step in self.recording["rounds"]])

    def experience(self, state: int, sampled: Any) -> Any:
        for rollout in self.recording["rollouts"]:
            if _key(rollout["sampled"]) == _key(sampled):
                return self._answer("experience", rollout["experience"])
        raise KeyError("unknown rollout")

    def rollout(self, state: int, seed: int) -> Any:
        scores = [r["scores"] for r in self.recording["rollouts"] if r["round"] == state]
        return self._answer("rollout", scores[0])


def _key(*values: Any) -> bytes:
    return pickle.dumps([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return (
        (value.shape, value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value
    )


def lose_a_gradient(answer: Any) -> Any:
    """Halve the gradient of the parameter whose gradient is largest."""
    loss, gradients = answer
    arrays = [x for named in gradients.values() for x in named.values()]
    max(arrays, key=lambda x: float(np.linalg.norm(x)))[...] *= 0.5
    return loss, gradients


def refused(
    recording: dict[str, Any], task: dict[str, Any], precise: Any, change: str, how: Any
) -> bool:
    """Whether one of the stages refuses the recording with one function's answers changed."""
    program = Replay(recording, {change: how})
    try:
        judge.check_numeric(program, task, recording, precise)
        judge.check_behaviour(program, task, recording, precise)
    except MismatchError:
        return True
    return False


CHANGES: dict[str, Any] = {
    "loss_and_gradients": lose_a_gradient,
    "outputs": lambda arrays: [x * 1.1 for x in arrays],
    "step": lambda report: report | {"learning_rate": report["learning_rate"] * 1.01 + 1e-9},
    "experience": lambda named: {name: _scaled(value) for name, value in named.items()},
}


def _scaled(value: Any) -> Any:
    if isinstance(value, list):
        return [_scaled(item) for item in value]
    floats = isinstance(value, float) or getattr(value, "dtype", np.dtype(int)).kind == "f"
    return value * 1.01 if floats else value


def check(
    recording: dict[str, Any], task: dict[str, Any], precise: dict[str, Any] | None = None
) -> list[str]:
    """Return what is wrong: a stage that refuses the script itself, a change that none refuses."""
    program, problems = Replay(recording, {}), []
    for stage in (judge.check_numeric, judge.check_behaviour):
        try:
            stage(program, task, recording, precise)
        except (MismatchError, KeyError) as reason:
            problems.append(f"{stage.__name__}: {reason}")
    for change, how in CHANGES.items():
        if change == "experience" and "scores" not in task:
            continue
        if not refused(recording, task, precise, change, how):
            problems.append(f"a change of {change} is not refused")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scripts", type=Path, nargs="+")
    failed = False
    for script in parser.parse_args().scripts:
        began = time.monotonic()
        task = tasks.read_task(script)
        recording, precise = judge.record(script, task)
        problems = check(recording, task, precise)
        failed |= bool(problems)
        said = "; ".join(problems) or "accepted, changes refused"
        steps, rollouts = len(recording["rounds"]), len(recording["rollouts"])
        print(
            f"{script.stem}: {steps} steps, {rollouts} rollouts, {time.monotonic() - began:.0f} s: {said}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
