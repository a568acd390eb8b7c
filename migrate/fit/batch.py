"""The largest batch that fits: which number it is, and which one to compile next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from migrate.fit.errors import FitError
from migrate.fit.products import Slice
from migrate.fit.verdict import FitVerdict, SliceResult
from migrate.parity.inputs.spec import Shaped, parse_inputs

_MOST = 1 << 24
_COMPILES = 12
_EVEN = 16  # from here on batches are multiples of 8


def largest(
    name: str, first: int, verdict: FitVerdict, judged: Callable[[int], FitVerdict]
) -> tuple[SliceResult, ...]:
    """The largest batch of a slice that fits: guessed by interpolation, then confirmed.

    Args:
        name: what the batch is called in the answer.
        first, verdict: a batch that was compiled already, and what came out.
        judged: compiles another one.
    """
    product, known, ended = verdict.product, {first: verdict}, ""
    while (batch := next_batch(known, product)) is not None:
        try:
            known[batch] = judged(batch)
        except FitError as error:  # a script may not take every batch
            ended = error.what
            break
        if known[batch].state not in ("fits", "too big"):
            break
    fitting = [batch for batch, verdict in known.items() if verdict.fits]
    if not fitting:
        return (SliceResult("no batch fits", (known[min(known)],)),)
    best = max(fitting)
    bounded = any(verdict.state == "too big" for verdict in known.values())
    end = "the largest that fits" if bounded else "which fits; larger ones were not tried"
    if ended:
        end = f"which fits; the search ended there: {ended}"
    return (SliceResult(f"{name} {best}, {end}", (known[best],)),)


def next_batch(known: dict[int, FitVerdict], product: Slice) -> int | None:
    """Return the batch to try next, or None if the largest is known within a fiftieth, or 8 above 16."""
    fitting = sorted(batch for batch, verdict in known.items() if verdict.fits)
    big = sorted(batch for batch, verdict in known.items() if verdict.state == "too big")
    if len(known) > _COMPILES:
        return None
    if not fitting:
        if not big or big[0] == 1:
            return None
        share = 0.9 * product.generation.hbm / max(1, known[big[0]].needed)
        return max(1, int(big[0] * min(0.5, share)))
    low = fitting[-1]
    if not big:
        if low >= _MOST:
            return None
        room = int(product.generation.hbm)
        if len(fitting) > 1:
            first, last = fitting[0], fitting[-1]
            slope = (known[last].needed - known[first].needed) / (last - first)
            if slope > 0:
                guess = int(low + (room - known[low].needed) / slope)
                return _even(max(low + max(1, low // 8), min(guess, low * 8)))
        return low * 2
    high = big[0]
    if high - low <= max(1, low // 50) or (low >= _EVEN and high - low <= 8):
        return None
    rate = (known[high].needed - known[low].needed) / (high - low) or 1
    guess = int(low + (product.generation.hbm - known[low].needed) / rate)
    # Not at either end: a guess that is a little too large would take one from it each time.
    inside = max(1, (high - low) // 8)
    guess = _even(min(max(guess, low + inside), high - inside))
    return guess if low < guess < high else (low + high) // 2


def _even(batch: int) -> int:
    return batch // 8 * 8 if batch >= _EVEN else batch


def batch_of(inputs: Sequence[str]) -> int:
    """The batch that `--inputs` names: the first side of its first array.

    Raises:
        FitError: it does not say shapes.
    """
    for spec in parse_inputs(inputs, drawn=False):
        if isinstance(spec, Shaped) and spec.shape:
            return spec.shape[0]
    raise FitError(
        "--inputs does not give a batch size", "write it as shapes: 'x=float32[8,3,224,224]'"
    )


def of_batch(inputs: Sequence[str], batch: int) -> tuple[str, ...]:
    """The inputs with another batch."""
    before = batch_of(inputs)
    return tuple(
        spec.replace(f"[{before}", f"[{batch}", 1) if "[" in spec else spec for spec in inputs
    )


def batch_option(args: Sequence[str], name: str) -> int:
    """The batch that a script is given by an option: `--batch-size 32`, `--batch_size=4`, `-b 8`, `batch=8`.

    Raises:
        FitError: it is not given one, or no number.
    """
    for place, said in _given(args, name):
        value = said if place < 0 else args[place]
        if value.isdecimal() and int(value) > 0:
            return int(value)
        raise FitError(f"{name} {value}: not a batch", "give a number of at least 1")
    raise FitError(
        f"{name}: the script does not get this option",
        f"pass a first batch size after --: -- {name} 32",
    )


def with_batch(args: Sequence[str], name: str, batch: int) -> tuple[str, ...]:
    """The arguments with another batch, in the spelling that they have."""
    arguments = list(args)
    for place, said in _given(args, name):
        if place >= 0:
            arguments[place] = str(batch)
        else:
            arguments[arguments.index(f"{name}={said}")] = f"{name}={batch}"
    return tuple(arguments)


def _given(args: Sequence[str], name: str) -> list[tuple[int, str]]:
    """The last place of the value, as parsers take it; -1 and the value where it is joined to the name."""
    positions: list[tuple[int, str]] = []
    for place, said in enumerate(args):
        if said == name and place + 1 < len(args):
            positions = [(place + 1, "")]
        elif said.startswith(f"{name}="):
            positions = [(-1, said.partition("=")[2])]
    return positions
