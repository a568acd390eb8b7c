"""Evaluations of a program on the batches that its script evaluated, in the program's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from migrate.train.proof.compare import GRADIENT_LIMIT
from migrate.train.results import TrainComparison

EVALUATION = "evaluation"
# Relative difference up to which values of an evaluation are equal: that of losses.
LIMIT = GRADIENT_LIMIT
TRAINING_MODE = (
    "the evaluation is in training mode: dropout is on, or it uses statistics of the batch"
)


def evaluated(
    state: Any, sites: Sequence[Mapping[str, Any]], update: int, results: dict[str, Any]
) -> None:
    """Evaluate the batches of one moment; note the values, and those in evaluation mode.

    Args:
        state: the program's state.
        sites: the recorded evaluations.
        update: number of updates before this moment.
        results: receives the values.
    """
    for site in sites:
        for number, batch in enumerate(site["batches"]):
            if batch["update"] != update:
                continue
            inputs: dict[Any, Any] = {}
            for name, (root, path) in site["inputs"].items():
                _put(inputs, (root, *path), batch["inputs"][name])
            key = f"{site['label']}:{number}"
            results[f"{EVALUATION}:{key}"] = _values(state, site["label"], inputs)
            results[f"in {EVALUATION} mode:{key}"] = _values(
                state, site["label"], inputs, deterministic=True
            )


def _put(batch: dict[Any, Any], keys: Sequence[Any], value: Any) -> None:
    *above, last = keys
    for key in above:
        batch = batch.setdefault(key, {})
    batch[last] = value


def _values(
    state: Any, label: str, batch: Any, *, deterministic: bool = False
) -> np.ndarray[Any, Any]:
    """The values; none if the program fails, so that they differ from any, NaN included."""
    module: Any = import_module("evaluate")
    original = module.values_of, module.EVALUATION
    if deterministic:
        module.values_of, module.EVALUATION = module.values_of.__wrapped__, _InMode(original[1])
    try:
        values = module.evaluated(state, label, batch)
    except Exception:  # of the program, whatever it is
        return np.array([])
    finally:
        module.values_of, module.EVALUATION = original
    return np.array(values, np.float64)


class _InMode:
    """An evaluation in evaluation mode, whatever its caller asks for."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the evaluation."""
        if "deterministic" in kwargs:
            kwargs["deterministic"] = True
        return self._module.apply(*args, **kwargs)


def compare_evaluations(
    results: Mapping[str, Any], sites: Sequence[Mapping[str, Any]], updates: int
) -> list[TrainComparison]:
    """Compare the values of the program with the script's; nothing if neither evaluates.

    Args:
        results: what the program gave.
        sites: the recorded evaluations.
        updates: number of recorded updates.
    """
    worst = in_mode = 0.0
    moments: set[int] = set()
    unknown: set[int] = set()
    labels: dict[str, int] = {}
    for site in sites:
        for number, batch in enumerate(site["batches"]):
            key = f"{site['label']}:{number}"
            ours = results.get(f"{EVALUATION}:{key}")
            if ours is None:
                unknown.add(batch["update"])
                continue
            expected = np.array([float(x) for x in batch["values"]])
            worst = max(worst, _apart(ours, expected))
            in_mode = max(in_mode, _apart(results[f"in {EVALUATION} mode:{key}"], expected))
            moments.add(batch["update"])
            labels[site["label"]] = labels.get(site["label"], 0) + len(expected)
    if not labels:
        return []
    own = sorted(moment for moment in moments if moment <= updates)
    parts = [f"{count} value{'s' * (count > 1)} of {label}" for label, count in labels.items()]
    if own:
        parts.append("before the first update" if own == [0] else f"after {_numbers(own)} updates")
    if later := sorted(moments - {*own}):
        why = "" if own else " (the compared updates have no evaluation)"
        parts.append(f"with the script's weights after {_numbers(later)} updates{why}")
    if unknown:
        weights = "the script's weights then are not known"
        parts.append(f"not compared: after {_numbers(sorted(unknown))} updates, {weights}")
    same = worst <= LIMIT
    cause = TRAINING_MODE if not same and in_mode <= LIMIT else ""
    return [TrainComparison(EVALUATION, same, worst, LIMIT, ", ".join(parts), cause)]


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _apart(ours: Any, theirs: Any) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    size = np.where(theirs == 0, 1.0, np.abs(theirs))
    both = np.isnan(ours) & np.isnan(theirs)
    distance = np.where(both, 0.0, np.abs(ours - theirs) / size)
    return float("inf") if np.isnan(distance).any() else float(distance.max(initial=0.0))
