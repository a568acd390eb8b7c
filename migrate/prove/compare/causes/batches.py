"""Different data for the model or the loss function."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import StepCase, lines
from migrate.prove.compare.gates import SMALL

# Relative to the root of the sum of squares: rounding to bfloat16 changes data by less. And relative to the
# sum: rounding.
_GATE, _ROUNDING = 1e-2, 1e-5
_Sums = tuple[tuple[str, float, float], ...]


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect data that is not sharded, shuffled or cut differently; labels in a different order."""
    if same := _same_on_all_ranks(case):
        return same
    if cause_here := _of_rank(case, step):
        return f": {cause_here}"
    # The gradients of a rank are averages over all: another rank's data changes them.
    for other in case.ranks:
        if cause_here := _of_rank(case, other):
            return f": on rank {other.rank} {cause_here}"
    return None


def _of_rank(case: StepCase, step: StepComparison) -> str | None:
    theirs, mine = step.original.details, step.rewritten.details
    if not _alike(theirs.inputs, mine.inputs):
        return _inputs(case, step)
    if not _alike(theirs.labels, mine.labels):
        return f"the inputs of the model are equal, the labels are not{lines(step, 'backward')}"
    return None


def _same_on_all_ranks(case: StepCase) -> str | None:
    if (
        len(case.ranks) > 1
        and case.ranks[0].rewritten.losses
        and len({step.rewritten.losses for step in case.ranks}) == 1
        and _losses_apart(case) > SMALL
    ):
        return (
            f": all {len(case.ranks)} ranks have the same loss, so they train on the same data (does "
            "the sampler get num_replicas and rank?)"
        )
    return None


def _losses_apart(case: StepCase) -> float:
    """Largest relative distance of a rank's loss from the first rank's, in the original."""
    first, *others = case.ranks
    return max(relative(first.original.loss, other.original.loss) or 0.0 for other in others)


def _inputs(case: StepCase, step: StepComparison) -> str:
    theirs, mine = step.original.details.inputs, step.rewritten.details.inputs
    shapes = [" and ".join(dict.fromkeys(tensor[0] for tensor in side)) for side in (mine, theirs)]
    if shapes[0] != shapes[1]:
        return (
            f"the model gets {shapes[0] or 'no tensors'}, in the original {shapes[1] or 'none'} (another "
            "batch size, or the last short batch of an epoch dropped or kept?)"
        )
    if again := _repeated(case, step):
        return (
            f"the batches are those of step {again} again, in the original they are others (is "
            f"set_epoch missing, so that each epoch has the same order?){lines(step, 'set_epoch')}"
        )
    return (
        "the model gets other data (another shuffle, another sampler or its seed, or another "
        "preprocessing?)"
    )


def _repeated(case: StepCase, step: StepComparison) -> int | None:
    """Earlier step whose batches the rewrite gets again, where the original does not."""
    original, ours = case.original[step.rank].steps, case.ours[step.rank].steps
    for theirs, mine in zip(original, ours, strict=False):
        if (mine.optimizer, mine.step) == (step.optimizer, step.step):
            return None
        again = _alike(mine.details.inputs, step.rewritten.details.inputs)
        if again and not _alike(theirs.details.inputs, step.original.details.inputs):
            return mine.step
    return None


def _alike(theirs: _Sums, mine: _Sums) -> bool:
    return len(theirs) == len(mine) and all(map(_same, theirs, mine))


def _same(theirs: tuple[str, float, float], mine: tuple[str, float, float]) -> bool:
    (shape, total, squares), (other_shape, other_total, other_squares) = theirs, mine
    return (
        shape == other_shape
        and abs(other_squares - squares) <= _GATE * squares
        and abs(other_total - total) <= _GATE * squares**0.5 + _ROUNDING * abs(total)
    )
