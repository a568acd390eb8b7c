"""Matrix multiplications run in the same precision: see `recording.dtypes`."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, at_step, lines, listed
from migrate.prove.recording import dtypes


def check(case: StepCase) -> Difference | None:
    """Return the first rank where a module multiplied in another precision."""
    for step in case.ranks:
        if not step.original.details.dtypes and not step.rewritten.details.dtypes:
            continue
        place = step.optimizer, step.step
        theirs = dtypes.until(case.original[step.rank], *place)
        mine = dtypes.until(case.ours[step.rank], *place)
        if unlike := dtypes.unlike(theirs, mine):
            names, here, there = unlike
            what = (
                f"matrix multiplications ran in {here}, in the original in {there}: "
                f"{listed(names)} (is autocast lost?){lines(step, 'backward')}"
            )
            return at_step("dtypes", step, what)
    return None
