"""A program on the recorded batches of its script: what it gives, and how far that is from the script."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.conversion import convert
from migrate import process
from migrate.port.weights import MAPPING, PARAMS
from migrate.prove.compare.gates import CEILING
from migrate.quick_xla import compiling_quickly
from migrate.train.proof.arrays import Arrays, part
from migrate.train.proof.causes.gradients import factor_of, loss_cause
from migrate.train.proof.causes.optimizer import mistakes, optimized, rate_cause
from migrate.train.proof.causes.start import start_cause, statistics_cause
from migrate.train.proof.child import SCALES
from migrate.train.proof.compare import (
    WAY_LIMIT,
    compare,
    way_ratio,
    weights_differ,
)
from migrate.train.proof.data_child import FLOAT_LIMIT
from migrate.train.proof.evaluations import compare_evaluations
from migrate.train.results import STAGES, TrainComparison

RECORD, START = "record.pickle", "start.safetensors"


def compared(
    place: Path,
    recorded: Mapping[str, Any],
    work: Path,
    timeout: float,
) -> tuple[tuple[TrainComparison, ...], str]:
    """Run the program on the recorded batches, and compare what it gives.

    Args:
        place: folder of the program.
        recorded: the recorded run.
        work: folder with the record; receives what the runs write.
        timeout: seconds for the run of the program.

    Returns:
        The comparisons, and why the program does not run ("" if it does).
    """
    script = _Script(recorded, place, work)
    if unlike := script.write_start():
        return (), unlike
    script.write_evaluated()
    results = _results("child", (place, work / RECORD, script.start_file), work, timeout)
    if isinstance(results, str):
        return (), f"the program does not run: {results}"
    rates = recorded["optimizer"].rates
    expected = script.expected()
    comparisons = compare(
        results,
        expected,
        recorded["updates"],
        rates,
        divides=recorded["divides"],
        dropout=bool(recorded["dropout"]),
        noise=recorded["noise"],
        size=recorded["size_of_terms"],
        moved=script.moved(),
        copies=script.copies(),
    )
    sites = recorded.get("evaluations", ())
    every = [*comparisons, *compare_evaluations(results, sites, len(recorded["updates"]))]
    return tuple(_with_cause(c, results, expected, script) for c in every), ""


def _results(
    module: str, paths: Sequence[Path], work: Path, timeout: float, *others: str
) -> Arrays | str:
    """Run the program in a process of its own.

    Args:
        module: module of this folder that runs it.
        paths: folder of the program, the record and the weights that it starts from.
        work: folder that receives what the run writes.
        timeout: seconds for the run.
        others: further arguments of the module.

    Returns:
        What the program computes, by name; or why it does not run.
    """
    output = work / "results.npz"
    output.unlink(missing_ok=True)
    code, said = child(f"migrate.train.proof.{module}", (*paths, output, *others), timeout)
    if code != 0 or not output.exists():
        return "took too long" if code is None else process.last_line(said)[:300]
    with np.load(output) as file:
        return dict(file)


def differs_in_float32(comparisons: Sequence[TrainComparison]) -> bool:
    """Whether all that differs could be rounding, which a comparison in float64 decides."""
    differing = [comparison for comparison in comparisons if not comparison.same]
    # A bias that starts from zero may be far from the script's by rounding, all weights together are not.
    values = [(c.apart or 0.0) if c.name == "weights" else c.worst or math.inf for c in differing]
    could_be = all(c.name in _ROUNDED for c in differing) and max(values, default=0.0) <= CEILING
    return bool(differing) and could_be


def compared_in_float64(
    comparisons: Sequence[TrainComparison],
    place: Path,
    wide: Mapping[str, Any] | str,
    work: Path,
    timeout: float,
) -> tuple[TrainComparison, ...]:
    """Run the program in float64 beside the script in float64, and judge by that what differs in float32.

    Limits are those of float32. Rounding is far below them, unless the training amplifies it without bound.

    Args:
        comparisons: comparisons in float32.
        place: folder of the program.
        wide: record of the script in float64, or why there is none.
        work: folder of that record; receives what the runs write.
        timeout: seconds for the run of the program.
    """
    if isinstance(wide, str):
        return _without_float64(comparisons, wide)
    script = _Script(wide, place, work)
    if unlike := script.write_start():
        return _without_float64(comparisons, unlike)
    results = _results("child", (place, work / RECORD, script.start_file), work, timeout)
    if isinstance(results, str):
        return _without_float64(comparisons, f"the program does not run in it: {results}")
    exact = compare(
        results,
        script.expected(),
        wide["updates"],
        wide["optimizer"].rates,
        divides=wide["divides"],
        size=wide["size_of_terms"],
        moved=script.moved(),
        copies=script.copies(),
    )
    return _decided(comparisons, exact)


# Comparisons that rounding in float32 may move.
_ROUNDED = ("gradients", "sum of gradients", "losses", "weights")


def _moment(comparison: TrainComparison) -> str:
    """The moment of a comparison of weights, of which there are several."""
    return comparison.what.partition(";")[0] if comparison.name == "weights" else ""


def _decided(
    comparisons: Sequence[TrainComparison], exact: Iterable[TrainComparison]
) -> tuple[TrainComparison, ...]:
    by_moment = {(c.name, _moment(c)): c for c in exact}
    return tuple(decided(c, by_moment.get((c.name, _moment(c)))) for c in comparisons)


def decided(comparison: TrainComparison, exact: TrainComparison | None) -> TrainComparison:
    """The comparison in float64, if the one in float32 differs."""
    if comparison.same or exact is None or comparison.name not in _ROUNDED:
        return comparison
    if not exact.same:
        what = f"{comparison.what}; in float64 {exact.worst:.1e}, {exact.what}"
        return replace(comparison, what=what)
    what = f"in float64: {exact.what}; in float32 rounding is {comparison.worst:.1e}"
    return replace(exact, what=what)


def _without_float64(
    comparisons: Sequence[TrainComparison], why: str
) -> tuple[TrainComparison, ...]:
    """The comparisons, with the reason for which float64 decides none."""
    return tuple(
        c if c.same else replace(c, what=f"{c.what}; not compared in float64: {why}")
        for c in comparisons
    )


def compared_updates(
    place: Path,
    whole: Mapping[str, Any],
    folders: Mapping[str, Path],
    work: Path,
    timeout: float,
    run_wide: Callable[[], tuple[Mapping[str, Any], Mapping[str, Path], Path] | str],
) -> tuple[tuple[TrainComparison, ...], str]:
    """Run a program with several updates on the recorded batches, and compare what each of them gives.

    Args:
        place: folder of the program.
        whole: the record of all updates.
        folders: folder of each update's own run.
        work: folder with the record of all; receives what the runs write.
        timeout: seconds for the run of the program.
        run_wide: records all updates in float64, and returns record, folders and folder of the record; or
            why it cannot.

    Returns:
        The comparisons, and why the program does not run ("" if it does).
    """
    every = _each_update(place, whole, folders, work, timeout)
    if isinstance(every, str):
        return (), every
    if differs_in_float32([c for own in every.values() for c in own]):
        wide = run_wide()
        exact = wide if isinstance(wide, str) else _each_update(place, *wide, timeout)
        every = {
            name: _without_float64(own, exact)
            if isinstance(exact, str)
            else _decided(own, exact[name])
            for name, own in every.items()
        }
    comparisons = [
        replace(c, what=f"{name}: {c.what}", cause=c.cause and f"{name}: {c.cause}")
        for name, own in every.items()
        for c in own
    ]
    order = [name for names in STAGES.values() for name in names]
    comparisons.sort(key=lambda comparison: order.index(comparison.name))
    return tuple(comparisons), ""


def _each_update(
    place: Path,
    whole: Mapping[str, Any],
    folders: Mapping[str, Path],
    work: Path,
    timeout: float,
) -> dict[str, tuple[TrainComparison, ...]] | str:
    """Comparisons by update; or why the program does not run."""
    from safetensors.numpy import load_file, save_file

    scripts: dict[str, _Script] = {}
    start = load_file(place / PARAMS)
    known: set[str] = set()
    for name, folder in folders.items():
        script = _Script(whole["parts"][name], place, folder)
        if unlike := script.write_start():
            return unlike
        # A module that an earlier update has is there as that update found it.
        script.first = {n: x for n, x in script.start.items() if n.split("/")[1] not in known}
        known |= {n.split("/")[1] for n in script.start}
        start |= script.first
        scripts[name] = script
    save_file(start, work / START)
    starts = json.dumps({name: str(script.start_file) for name, script in scripts.items()})
    paths = (place, work / RECORD, work / START)
    results = _results("updates_child", paths, work, timeout, starts)
    if isinstance(results, str):
        return f"the program does not run: {results}"
    return {name: _of_update(name, script, results) for name, script in scripts.items()}


def _of_update(name: str, script: _Script, every: Arrays) -> tuple[TrainComparison, ...]:
    """Comparisons of one of several updates."""
    recorded = script.recorded
    results = {
        key.removeprefix(f"{name}|"): x for key, x in every.items() if key.startswith(f"{name}|")
    }
    others = script.others()
    expected = {
        key: x
        for key, x in script.expected().items()
        if not (key.startswith(("first:", "last:")) and key.partition(":")[2] in others)
    }
    comparisons = compare(
        results,
        expected,
        recorded["updates"],
        recorded["optimizer"].rates,
        divides=recorded["divides"],
        dropout=bool(recorded["dropout"]) and not recorded["wide"],
        noise=recorded["noise"] and not recorded["wide"],
        size=recorded["size_of_terms"],
        first=script.first,
        moved=script.moved(),
        copies=script.copies(),
    )
    if recorded["wide"]:  # causes are those of the comparison in float32
        return tuple(comparisons)
    return tuple(_with_cause(c, results, expected, script) for c in comparisons)


def weights_of(
    place: Path, recorded: Mapping[str, Any], state: Mapping[str, Any], work: Path, name: str
) -> Path:
    """Write weights of the script as the program has them; return the file."""
    from safetensors.numpy import load_file, save_file

    file = work / f"{name}.safetensors"
    own = load_file(place / PARAMS)
    save_file({**own, **_Script(recorded, place, work).in_flax(state)}, file)
    return file


def written_start(place: Path, recorded: Mapping[str, Any], work: Path) -> Path | None:
    """Write the weights that a recorded update starts from, as the program has them; None if it cannot."""
    script = _Script(recorded, place, work)
    return None if script.write_start() else script.start_file


class _Script:
    """Recorded values of a script as arrays of its program.

    Args:
        recorded: the recorded run.
        place: folder of the program, which has the mapping of names.
        work: folder for files.
    """

    def __init__(self, recorded: Mapping[str, Any], place: Path, work: Path) -> None:
        self.recorded, self._place, self._work = recorded, place, work
        self.start_file = work / START
        # Weights that its program starts from, if those are not all of `start`.
        self.first: dict[str, np.ndarray[Any, Any]] | None = None

    def write_start(self) -> str:
        """Write the weights that the script starts from, and the sums of its first gradients.

        Returns:
            The array that the program does not have as the script has it; "" if there is none.
        """
        from safetensors.numpy import load_file, save_file

        own = load_file(self._place / PARAMS)
        self.start = self.in_flax(self.recorded["state"])
        for name, value in self.start.items():
            if name not in own or own[name].shape != value.shape:
                has = list(own[name].shape) if name in own else "nothing"
                return f"{PARAMS} has {has} for {name}, in the script it is {list(value.shape)}"
        save_file({**own, **self.start}, self.start_file)
        sums = self.gradients(self.recorded["summed"])
        params = {n.removeprefix("params/"): x for n, x in own.items() if n.startswith("params/")}
        zeros = {name: np.zeros_like(x) for name, x in params.items()}
        save_file({**zeros, **sums}, self.start_file.with_suffix(".sums"))
        self.sums = sums
        return ""

    def write_evaluated(self) -> None:
        """Write the weights with which the script evaluates after the recorded updates."""
        count = len(self.recorded["updates"])
        for update, state in self.recorded.get("evaluated_states", {}).items():
            if update > count:
                name = f"{self.start_file.stem}.{update}"
                weights_of(self._place, self.recorded, state, self._work, name)

    def expected(self) -> dict[str, np.ndarray[Any, Any]]:
        """All values that the program should give; in float64, those that rounding may move."""
        recorded = self.recorded
        parts: dict[str, Arrays] = {
            "gradient": self.gradients(recorded["gradients"]),
            "sum": self.sums,
            **{w: self.in_flax(recorded[w]) for w in ("first", "last") if w in recorded},
        }
        if not recorded["wide"]:
            average = recorded.get("average")
            parts["start"] = self.start
            parts["optimized"] = self.optimized(recorded["optimizer"])
            parts["average"] = self.gradients(average.last) if average else {}
        return {
            f"{which}:{name}": x for which, arrays in parts.items() for name, x in arrays.items()
        }

    def optimized(self, optimizer: Any, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Weights after updates by torch's optimizer alone."""
        recorded = self.recorded
        scales = SCALES[: len(recorded["optimizer"].rates)]
        state = optimized(optimizer, recorded["state"], recorded["summed"], scales, **options)
        for tied, first in recorded["tied"].items():
            state[tied] = state[first]
        arrays = self.in_flax(state)
        return {name: x for name, x in arrays.items() if name.startswith("params/")}

    def gradients(self, gradients: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Gradients by the program's names; zero where the script has none."""
        recorded = self.recorded
        full = {
            name: np.zeros_like(x) if gradients.get(name) is None else gradients[name]
            for name, x in recorded["state"].items()
        }
        full |= {tied: full[first] for tied, first in recorded["tied"].items()}
        arrays = self.in_flax(full)
        return {n.removeprefix("params/"): x for n, x in arrays.items() if n.startswith("params/")}

    def others(self) -> set[str]:
        """Paths of the parameters that other updates train: they are compared there."""
        return self._paths(self.recorded["others"])

    def moved(self) -> dict[str, list[str]]:
        """Paths of the statistics that statements outside of the updates move, with these statements."""
        moved: dict[str, list[str]] = {}
        for statement in self.recorded["moved"]:
            for path in self._paths(statement.buffers) if statement.before else ():
                moved.setdefault(path, []).append(statement.text)
        return moved

    def copies(self) -> dict[str, str]:
        """Paths of frozen weights that become trained ones or move towards them, with the trained one's."""
        copies = self.recorded.get("copies")
        if copies is None:
            return {}
        state = self.recorded["state"]
        numbered = {
            name: np.full_like(x, number, dtype=np.float32)
            for number, (name, x) in enumerate(state.items())
        }
        names = list(state)
        paths = {names[int(x.flat[0])]: path for path, x in self.in_flax(numbered).items()}
        return {paths[to]: paths[of] for to, of in copies.names.items() if {to, of} <= set(paths)}

    def _paths(self, names: Collection[str]) -> set[str]:
        """Paths of the program's arrays that have values of entries of torch's state dict."""
        marked = {
            name: np.full_like(x, name in names, dtype=np.float32)
            for name, x in self.recorded["state"].items()
        }
        return {path for path, x in self.in_flax(marked).items() if np.any(x)}

    def mistakes(self) -> dict[str, tuple[float, Arrays]]:
        """Loss and gradients of the script with each known mistake."""
        return {m.what: (m.loss, self.gradients(m.gradients)) for m in self.recorded["mistakes"]}

    def in_flax(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Tensors of torch's state dict as the program's arrays, by the port's mapping."""
        import torch
        from safetensors.numpy import load_file

        source, target = self._work / "converted.pt", self._work / "converted.safetensors"
        torch.save({name: torch.as_tensor(value) for name, value in tensors.items()}, source)
        convert(source, mapping=self._place / MAPPING, output=target, overwrite=True)
        return dict(load_file(target))


# ---------------------------------------------------------------------------- causes


def _with_cause(
    comparison: TrainComparison, results: Arrays, expected: Arrays, script: _Script
) -> TrainComparison:
    if comparison.same or comparison.cause or comparison.name not in _CAUSES:
        return comparison
    return replace(comparison, cause=_CAUSES[comparison.name](results, expected, script))


def _of_start(results: Arrays, expected: Arrays, script: _Script) -> str:
    ours, theirs = part(results, "start"), part(expected, "start")
    first = theirs if script.first is None else script.first
    name = next(n for n in first if weights_differ(ours.get(n), theirs[n]))
    return start_cause(name, ours[name], theirs[name])


def _of_gradients(results: Arrays, expected: Arrays, script: _Script) -> str:
    share = script.recorded.get("share") or 1.0  # of the losses, which the mistakes do not have
    loss = float(results["losses:0"][0]) / share
    theirs = script.recorded["updates"][0]["micro"][0]["loss"] / share
    ours, script_gradients = part(results, "gradient"), part(expected, "gradient")
    return loss_cause(loss, ours, theirs, script_gradients, script.mistakes())


def _of_sums(results: Arrays, expected: Arrays, script: _Script) -> str:
    ours, theirs, first = (
        part(a, b) for a, b in ((results, "sum"), (expected, "sum"), (expected, "gradient"))
    )
    count = len(script.recorded["updates"][0]["micro"])
    if (of_means := script.recorded.get("sum_of_means")) and _near(
        ours, script.gradients(of_means)
    ):
        return "mean of means: micro-batches are not weighted by their numbers of elements"
    factor = factor_of(ours, theirs)
    if factor and count > 1 and abs(factor * count - 1) < 1e-3:
        return f"double averaging: the sum is divided by the {count} micro-batches, as the loss is already"
    if count > 1 and factor and abs(factor - count) < 1e-3 * count:
        return f"the gradients are {count} times the script's: the loss is not divided by the micro-batches"
    if count > 1 and _near(ours, first):
        return "only the first micro-batch's gradients are used"
    last = {name: theirs[name] - first[name] for name in theirs}
    if count == 2 and _near(ours, last):
        return "only the last micro-batch's gradients are used"
    return f"the gradients are {factor:.4g} times the script's" if factor else ""


def _near(ours: Arrays, theirs: Arrays) -> bool:
    return not any(weights_differ(ours.get(name), x, 1e-4) for name, x in theirs.items())


def _of_optimizer(results: Arrays, expected: Arrays, script: _Script) -> str:
    ours = part(results, "optimized")
    others = script.others()
    right = {n: x for n, x in part(expected, "optimized").items() if n not in others}
    start = script.start

    def apart(theirs: Arrays) -> float:
        return max(way_ratio(ours[name], theirs[name], start[name]) for name in right)

    recorded = script.recorded
    nearest, named = 10 * WAY_LIMIT, ""
    for what, changed, options in mistakes(recorded["optimizer"], recorded["state"]):
        if (ratio := apart(script.optimized(changed, **options))) < nearest:
            nearest, named = ratio, what
    if named:
        return named
    unlike = [n for n in right if weights_differ(ours[n], right[n], 1e-5)]
    still = [n for n in unlike if np.array_equal(ours[n], start[n])]
    frozen = [n for n in unlike if np.array_equal(right[n], start[n])]
    if still:
        return f"{still[0]} is not updated, in the script it is"
    if frozen:
        return f"{frozen[0]} is updated, the script does not train it"
    if 0 < len(unlike) < len(right):
        return f"only {', '.join(unlike[:3])}{', …' if len(unlike) > 3 else ''} differ: their group"
    return ""


def _of_rates(results: Arrays, expected: Arrays, script: _Script) -> str:
    theirs = [update[0] for update in script.recorded["optimizer"].rates]
    return rate_cause([float(results[f"rate:{n}"]) for n in range(len(theirs))], theirs)


def _of_weights(results: Arrays, expected: Arrays, script: _Script) -> str:
    return statistics_cause(script.start, part(results, "first"), part(expected, "first"))


_CAUSES: Mapping[str, Any] = {
    "start": _of_start,
    "gradients": _of_gradients,
    "sum of gradients": _of_sums,
    "optimizer": _of_optimizer,
    "learning rates": _of_rates,
    "weights": _of_weights,
}


# ---------------------------------------------------------------------------- data


def data_equal(rollouts: bool) -> str:
    """Say how equal data are: of rollouts, the numbers that the model computes are equal within a limit."""
    if not rollouts:
        return "bit for bit"
    return f"by rollouts with the program's own weights, its numbers within {FLOAT_LIMIT:.0e}"


def data_difference(place: Path, work: Path, timeout: float) -> tuple[str, str]:
    """First difference of the program's own batches from the recorded ones, and its cause; "" if none.

    A program with rollouts trains meanwhile, from the start that `compared` wrote, or from its own.
    """
    output, start = work / "data.json", work / START
    output.unlink(missing_ok=True)
    paths = (place, work / RECORD, start if start.exists() else place / PARAMS, output)
    code, said = child("migrate.train.proof.data_child", paths, timeout)
    if code == 0 and output.exists():
        answer = json.loads(output.read_text())
        return answer["difference"], answer["cause"]
    return f"data.py does not run: {process.last_line(said)[:200]}", ""


def child(module: str, paths: Sequence[Path | str], timeout: float) -> tuple[int | None, str]:
    """Run a module of this package on the CPU in a process of its own."""
    environment = {
        **os.environ,
        **compiling_quickly(os.environ),
        "JAX_PLATFORMS": "cpu",
        "JAX_TRACEBACK_FILTERING": "off",
    }
    return process.run(
        [sys.executable, "-m", module, *map(str, paths)], seconds=timeout, environment=environment
    )
