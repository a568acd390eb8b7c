"""The search for the largest batch, without a compiler: what fits is a line through the origin."""

from __future__ import annotations

import pytest

from migrate.fit.products import product_named
from migrate.fit.story import _next
from migrate.fit.verdict import Verdict

SLICE = product_named("v5e-1")


@pytest.mark.parametrize("each", [900, 3e5, 7.3e6, 1.1e8, 2.5e9, 3e10])
@pytest.mark.parametrize("first", [1, 8, 100_000])
def test_the_largest_batch_is_found_in_a_few_compiles(each: float, first: int) -> None:
    room = SLICE.generation.hbm

    def judged(batch: int) -> Verdict:
        needed = int(1e8 + each * batch * 1.02)  # a little more than what interpolation expects
        state = "fits" if needed <= room else "too big"
        return Verdict(SLICE, state, needed=needed, available=int(room))  # type: ignore[arg-type]

    known = {first: judged(first)}
    while (batch := _next(known, SLICE)) is not None:
        assert batch not in known
        known[batch] = judged(batch)
    fitting = [batch for batch, one in known.items() if one.fits]
    most = (room - 1e8) / (each * 1.02)
    if most < 1:
        assert not fitting
        return
    assert max(fitting) <= most
    assert max(fitting) >= min(0.9 * most - 8, 1 << 24) or len(known) > 12
    assert len(known) <= 14
