"""How far a side's tensors are from the truth's, in float64, one tensor at a time.

Gone through in pieces of 65536 elements, so that no second copy of a big tensor is made in float64; what is
kept between tensors is a few sums.

**Masked elements.** Minus infinity, the most negative number of a dtype and -1e9 (-1e10, -1e12, …) all
stand for "not to be attended to". Where both have such a value they agree, whichever it is, and the element
is in no other figure; where one has, it counts as not finite. A tensor of zeros and one value below -1000 is
a mask too (BERT's -10000).

**NaN.** Where the truth is NaN nothing can be said: `Errors.undefined` counts it, and no verdict is "match"
with it. A NaN or an infinity that the truth has not is counted in `Errors.not_finite`, and the errors are
infinite.

**A truth of zeros.** ‖x - t‖ / ‖t‖ is 0 where x is zero too, else infinite; only ρ can say whether that is
worse than what a correct run gives.

**Integers and bools** have no error but equal or not: the relative L2 is the root of the share of elements
that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from migrate.parity.results import Errors

Array = np.ndarray[Any, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]

PIECE = 65536
_LARGE = -9e8
# Edges of log10 |error / rms(t)|.
EDGES: tuple[float, ...] = tuple(-18 + 0.25 * step for step in range(85))


@dataclass(frozen=True)
class Floating:
    """A floating dtype.

    Attributes:
        bits: of the significand, the hidden one included.
        lowest: exponent of the smallest normal number.
    """

    bits: int
    lowest: int

    @property
    def roundoff(self) -> float:
        """u = 2^-bits: the largest relative error of a correct rounding."""
        return math.ldexp(1.0, -self.bits)

    @property
    def rounding_error(self) -> float:
        """Relative L2 error of a correct rounding: 0.4 u.

        The error is uniform in ±u·2^e, with root mean square u·2^e/√3; over significands of which each binade
        has equally many that makes 0.38 u for uniform values and 0.43 u for normal ones (measured).
        """
        return 0.4 * self.roundoff

    def spacing(self, values: Floats) -> Floats:
        """The distance of neighbouring numbers at these magnitudes."""
        _, exponent = np.frexp(values)
        exponent = np.maximum(exponent - 1, self.lowest)
        return np.ldexp(1.0, exponent - self.bits + 1)


def floating(dtype: str) -> Floating | None:
    """Of a dtype's name; None for integers and bools."""
    try:
        found = ml_dtypes.finfo(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    except (TypeError, ValueError, KeyError):
        return None
    return Floating(int(found.nmant) + 1, int(found.minexp))


def ulps(truth: Floats, side: Floats, dtype: str) -> Floats:
    """|x - fl(t)| in units of the spacing of the side's dtype at fl(t), the correctly rounded truth."""
    kind = floating(dtype)
    if kind is None:
        raise ValueError(f"{dtype} has no units in the last place")
    unit = kind.spacing(truth)
    return np.abs(side - np.rint(truth / unit) * unit) / unit


class Measurement:
    """The errors of a tensor over inputs, as they come.

    Args:
        dtype: the side's, by name.
        elementwise: whether units in the last place say anything of the operation.
        histogram: whether `histogram` will be asked for; it costs as much as all else.
    """

    def __init__(self, dtype: str, *, elementwise: bool = False, histogram: bool = False) -> None:
        self.dtype = dtype
        self._ulps: float | None = 0.0 if elementwise and floating(dtype) is not None else None
        self._sums: dict[int, list[float]] = {}  # of each input: |x - t|², t², x², x·t
        self._max_error = self._max_truth = 0.0
        self._counted = 0
        self.not_finite = self.undefined = self.elements = 0
        self._bins = np.zeros(len(EDGES) + 240, np.int64) if histogram else None

    def add(self, number: int, truth: Array, side: Array) -> None:
        """Take a tensor of the input with this number; the two have one shape.

        Raises:
            ValueError: they have not.
        """
        if truth.shape != side.shape:
            raise ValueError(f"shapes {truth.shape} and {side.shape}")
        sums = self._sums.setdefault(number, [0.0, 0.0, 0.0, 0.0])
        self.elements += truth.size
        exact = truth.dtype.kind in "biu" and side.dtype.kind in "biu"
        if not exact and is_mask(truth) and is_mask(side):
            truth, side, exact = truth == 0, side == 0, True
        for t, x in _pieces(truth, side):
            if exact:
                x, t = (x != t).astype(np.float64) + 1.0, np.ones_like(t)
            else:
                t, x = self._comparable(t, x)
            if t.size:
                self._sum(sums, t, x)

    def _comparable(self, t: Floats, x: Floats) -> tuple[Floats, Floats]:
        """What is left when what is masked or not finite is counted and gone."""
        if np.isfinite(t).all() and np.isfinite(x).all() and t.min() > _LARGE < x.min():
            return t, x
        undefined, masked, other = np.isnan(t), _masked(t), _masked(x)
        numbers = np.isfinite(t) & np.isfinite(x) & ~masked & ~other
        same = (masked & other) | (~numbers & (t == x))
        self.undefined += int(undefined.sum())
        self.not_finite += int((~(numbers | undefined | same)).sum())
        return t[numbers], x[numbers]

    def _sum(self, sums: list[float], t: Floats, x: Floats) -> None:
        difference = np.abs(x - t)
        with np.errstate(over="ignore"):
            sums[0] += float(difference @ difference)
            sums[1] += float(t @ t)
            sums[2] += float(x @ x)
            sums[3] += float(x @ t)
        self._max_error = max(self._max_error, float(difference.max()))
        self._max_truth = max(self._max_truth, float(np.abs(t).max()))
        self._counted += t.size
        if self._ulps is not None:
            self._ulps = max(self._ulps, float(ulps(t, x, self.dtype).max()))
        if self._bins is not None:
            self._bins += _binned(difference, len(self._bins))

    @property
    def rms(self) -> float:
        """rms(t), over all inputs."""
        return math.sqrt(_sum(s[1] for s in self._sums.values()) / max(self._counted, 1))

    @property
    def crest(self) -> float:
        """max |t| / rms(t); rounding the largest element adds u times this to `Errors.max_over_rms`."""
        return _over(self._max_truth, self.rms)

    def errors(self) -> Errors:
        """What was found.

        Formulas: relative L2 = √(Σ(x-t)² / Σt²); max / RMS = max|x-t| / √(Σt²/n); cosine =
        Σxt / √(Σx² Σt²). Sources: numerics.md; Higham, *Accuracy and Stability*, 2nd ed., ch. 3, for
        why errors are measured normwise and not elementwise.
        """
        bad = math.inf if self.not_finite else 0.0
        error, truth, side, product = (
            _sum(s[part] for s in self._sums.values()) for part in range(4)
        )
        norms = math.sqrt(truth) * math.sqrt(side)
        return Errors(
            relative_l2=max(bad, _over(math.sqrt(error), math.sqrt(truth))),
            max_over_rms=max(bad, _over(self._max_error, self.rms)),
            cosine=product / norms if norms and math.isfinite(norms) else float(error == 0),
            ulps=self._ulps,
            not_finite=self.not_finite,
            elements=self.elements,
            per_input=tuple(
                max(bad, _over(math.sqrt(s[0]), math.sqrt(s[1])))
                for _, s in sorted(self._sums.items())
            ),
            undefined=self.undefined,
        )

    def histogram(self) -> tuple[int, ...]:
        """Counts of log10(|x - t| / rms(t)) between `EDGES`; what is beyond them is in the outermost."""
        shift = round(math.log10(self.rms) * 4) if self.rms else 0
        counts = [0] * (len(EDGES) - 1)
        for place, count in enumerate([] if self._bins is None else self._bins.tolist()):
            counts[min(max(place - 120 - shift, 0), len(counts) - 1)] += count
        return tuple(counts)


def errors(
    truth: Iterable[Array], side: Iterable[Array], *, dtype: str, elementwise: bool = False
) -> Errors:
    """The errors of one tensor of a side, given for each input; see `Measurement`."""
    measured = Measurement(dtype, elementwise=elementwise)
    for number, (t, x) in enumerate(zip(truth, side, strict=True)):
        measured.add(number, t, x)
    return measured.errors()


def is_mask(array: Array) -> bool:
    """Whether these are zeros and one value below -1000, and nothing else: what is added to scores."""
    if array.dtype.kind != "f" or array.size == 0:
        return False
    for part in (array.flat[:64], array):
        low = part.min()
        if not np.all((part == 0) | (part == low)) or not (low == 0 or low < -1000):
            return False
    return bool(low < -1000)


def _masked(values: Floats) -> Array:
    """Minus infinity, a dtype's most negative number, or -10^k with something added to it."""
    found = values < -1e30
    large = ~found & (values < _LARGE)
    if large.any():
        power = np.log10(-values, where=large, out=np.full_like(values, 0.5))
        found |= np.abs(power - np.rint(power)) < 1e-6
    return found


def _binned(difference: Floats, count: int) -> Array:
    """Counts of log10 of the errors before rms(t) is known; `Measurement.histogram` shifts them by it."""
    with np.errstate(divide="ignore"):
        places = np.floor((np.log10(difference) - EDGES[0]) * 4)
    places = np.clip(np.nan_to_num(places, neginf=-1e9), -120, count - 121)
    return np.bincount(places.astype(np.int64) + 120, minlength=count)


def _pieces(truth: Array, side: Array) -> Iterator[tuple[Floats, Floats]]:
    """Both in float64, in the same order, however they lie in memory."""
    if truth.size == 0:
        return
    pieces = np.nditer(
        (truth, side),
        flags=["external_loop", "buffered"],
        op_flags=[["readonly"], ["readonly"]],
        op_dtypes=["f8", "f8"],
        casting="unsafe",
        buffersize=PIECE,
    )
    yield from pieces


def _sum(values: Iterable[float]) -> float:
    return math.fsum(value for value in values if math.isfinite(value))


def _over(error: float, size: float) -> float:
    if error == 0:
        return 0.0
    return error / size if size else math.inf
