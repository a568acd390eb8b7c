"""The search for the largest batch, without a compiler: what fits is a line through the origin."""

from __future__ import annotations

import pytest

from migrate.fit.batch import batch_option, next_batch, with_batch
from migrate.fit.errors import FitError
from migrate.fit.products import product_named
from migrate.fit.verdict import FitVerdict

SLICE = product_named("v5e-1")


@pytest.mark.parametrize("each", [900, 3e5, 7.3e6, 1.1e8, 2.5e9, 3e10])
@pytest.mark.parametrize("first", [1, 8, 100_000])
def test_the_largest_batch_is_found_in_a_few_compiles(each: float, first: int) -> None:
    room = SLICE.generation.hbm

    def judged(batch: int) -> FitVerdict:
        needed = int(1e8 + each * batch * 1.02)  # a little more than what interpolation expects
        state = "fits" if needed <= room else "too big"
        return FitVerdict(SLICE, state, needed=needed, available=int(room))  # type: ignore[arg-type]

    known = {first: judged(first)}
    while (batch := next_batch(known, SLICE)) is not None:
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


@pytest.mark.parametrize(
    ("name", "args", "changed"),
    [
        ("--batch-size", "--epochs 3 --batch-size 32 x", "--epochs 3 --batch-size 64 x"),
        ("--batch_size", "config.py --batch_size=32", "config.py --batch_size=64"),
        ("-b", "-b 4 -b 32", "-b 4 -b 64"),  # the last one counts
        ("train.batch", "train.batch=32 lr=1", "train.batch=64 lr=1"),
    ],
)
def test_the_option_that_is_the_batch(name: str, args: str, changed: str) -> None:
    assert batch_option(args.split(), name) == 32
    assert with_batch(args.split(), name, 64) == tuple(changed.split())


@pytest.mark.parametrize("args", ["", "--batch-size", "--batch-size many", "--batch-size 0"])
def test_no_batch_to_begin_with(args: str) -> None:
    with pytest.raises(FitError):
        batch_option(args.split(), "--batch-size")
