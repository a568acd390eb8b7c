"""Equality of the parameters after the steps at which they are kept."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, at_step, lines
from migrate.prove.compare.gates import SMALL


def check(case: StepCase) -> Difference | None:
    """Return the first rank with another parameter, and the parameter that is farthest away."""
    from migrate.prove.recording import elements, weights  # torch takes seconds to import

    for step in case.ranks:
        key = (step.optimizer, step.step)
        theirs = case.original[step.rank].snapshots.get(key)
        mine = case.ours[step.rank].snapshots.get(key)
        if theirs is None or mine is None:
            continue
        kept = case.original[step.rank].elements.get(key)
        left_out = elements.moved(kept, case.gates.gradients(*key))
        distances = weights.distances(theirs, mine, left_out)
        for walking in weights.noise(theirs, mine):
            distances.pop(walking, None)
        limits = {name: case.gates.parameter(name, *key) for name in distances}
        beyond = {name: far for name, far in distances.items() if far > limits[name]}
        name = max(beyond, key=beyond.__getitem__, default=None)
        if name is None:
            continue
        kinds = step.original.details.kind, step.rewritten.details.kind
        why = "with equal gradient norms: the optimizer updates it differently"
        if beyond[name] < SMALL and kinds[0] == kinds[1]:
            # Gradients of equal norms may still differ by this much.
            why = "with equal gradient norms (perhaps the optimizer updates it differently)"
        other = f" ({kinds[1]}, in the original {kinds[0]})" if kinds[0] != kinds[1] else ""
        return at_step(
            "parameters",
            step,
            f"{name} is {beyond[name]:.2g} away from the original's after the step (gate "
            f"{limits[name]:.2g}), {why}{other}{lines(step, 'step')}",
            beyond[name],
        )
    return None
