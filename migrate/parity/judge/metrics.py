"""Distance of a side's tensors from the truth's, in float64, one tensor at a time.

Tensors are processed in pieces of 8192 elements, so that a big tensor has no second copy in float64. Only a
few sums are kept between tensors.

**Masked elements.** Minus infinity, the most negative number of a dtype and -1e9 (-1e10, -1e12, …) all mean
"not to be attended to". If both tensors have such a value, whichever it is, they agree, and the element is
in no other figure. If one has, the element counts as not finite. A tensor of zeros and one value below -1000
is a mask too (BERT's -10000).

**NaN.** Where the truth is NaN, comparison is impossible: `Errors.undefined` counts these elements, and no
verdict with such elements is "match". A NaN or an infinity that the truth does not have is counted in
`Errors.not_finite`, and the errors are infinite.

**A truth of zeros.** ‖x - t‖ / ‖t‖ is 0 where x is zero too, else infinite. Only ρ can show whether that is
worse than the result of a correct run.

**Integers and bools** are only equal or not: the relative L2 is the root of the fraction of elements that
differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from migrate.parity.ground.results import Errors

Array = np.ndarray[Any, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]

PIECE = 8192  # too small for BLAS to start threads for a dot product
_LARGE = -9e8
_EXPONENT = np.uint64(0x7FF << 52)
# Edges of log10 |error / rms(t)|.
EDGES: tuple[float, ...] = tuple(-18 + 0.25 * step for step in range(85))


@dataclass(frozen=True)
class Floating:
    """Floating dtype.

    Attributes:
        bits: bits of the significand, including the hidden bit.
        lowest: exponent of the smallest normal number.
    """

    bits: int
    lowest: int

    @property
    def roundoff(self) -> float:
        """Unit roundoff u = 2^-bits: the largest relative error of a correct rounding."""
        return math.ldexp(1.0, -self.bits)

    @property
    def rounding_error(self) -> float:
        """Relative L2 error of a correct rounding: 0.4 u.

        The error is uniform in ±u·2^e, with root mean square u·2^e/√3; over significands of which each binade
        has equally many that makes 0.38 u for uniform values and 0.43 u for normal ones (measured).
        """
        return 0.4 * self.roundoff

    def spacing(self, values: Floats) -> Floats:
        """Distance of neighboring numbers at these magnitudes."""
        # Without the sign and the significand, a float64 is a power of two.
        power = (np.ascontiguousarray(values).view(np.uint64) & _EXPONENT).view(np.float64)
        np.maximum(power, math.ldexp(1.0, self.lowest), out=power)
        power *= math.ldexp(1.0, 1 - self.bits)
        return power


@functools.cache
def floating(dtype: str) -> Floating | None:
    """Properties of a dtype by its name; None for integers and bools."""
    try:
        info = ml_dtypes.finfo(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    except (TypeError, ValueError, KeyError):
        return None
    return Floating(int(info.nmant) + 1, int(info.minexp))


def ulps(truth: Floats, side: Floats, dtype: str) -> Floats:
    """Distance |x - fl(t)| in units of the spacing of the side's dtype at fl(t), the correctly rounded
    truth.
    """
    kind = floating(dtype)
    if kind is None:
        raise ValueError(f"{dtype} has no units in the last place")
    unit = kind.spacing(truth)
    rounded = truth / unit
    np.rint(rounded, out=rounded)
    # Both are multiples of a power of two: the difference is exact.
    distance = side / unit
    distance -= rounded
    return np.abs(distance, out=distance)


@dataclass(frozen=True)
class Sums:
    """Sums of one tensor.

    Attributes:
        error, truth, side, product: Σ(x-t)², Σt², Σx², Σxt.
        worst, beside: the largest |x-t|, and |t| of that element.
        ulps: the largest distance in units in the last place; 0 if not requested.
        counted: number of elements in these sums.
        elements, not_finite, undefined, filled: as in `Errors`.
        bins: counts of log10 |x-t|, if a histogram was requested.
    """

    error: float = 0.0
    truth: float = 0.0
    side: float = 0.0
    product: float = 0.0
    worst: float = 0.0
    beside: float = 0.0
    ulps: float = 0.0
    counted: int = 0
    elements: int = 0
    not_finite: int = 0
    undefined: int = 0
    filled: int = 0
    bins: Array | None = None

    def __add__(self, other: Sums) -> Sums:
        larger = self if self.worst >= other.worst else other
        bins = self.bins if other.bins is None else other.bins
        if self.bins is not None and other.bins is not None:
            bins = self.bins + other.bins
        return Sums(
            self.error + other.error,
            self.truth + other.truth,
            self.side + other.side,
            self.product + other.product,
            larger.worst,
            larger.beside,
            max(self.ulps, other.ulps),
            self.counted + other.counted,
            self.elements + other.elements,
            self.not_finite + other.not_finite,
            self.undefined + other.undefined,
            self.filled + other.filled,
            bins,
        )

    @property
    def relative_l2(self) -> float:
        """Relative L2 error √(Σ(x-t)² / Σt²); infinite where something is not finite."""
        return math.inf if self.not_finite else _over(math.sqrt(self.error), math.sqrt(self.truth))


def measure(
    truth: Array, side: Array, dtype: str, *, elementwise: bool = False, histogram: bool = False
) -> Sums:
    """Compute the sums of a tensor; arguments as in `Measurement`.

    Raises:
        ValueError: the shapes differ.
    """
    if truth.shape != side.shape:
        raise ValueError(f"shapes {truth.shape} and {side.shape}")
    exact = truth.dtype.kind in "biu" and side.dtype.kind in "biu"
    if not exact and is_mask(truth) and is_mask(side):
        truth, side, exact = truth == 0, side == 0, True
    total = Sums(elements=truth.size)
    error = t_total = x_total = product = worst = beside = 0.0
    farthest, counted, bins = 0.0, 0, None
    # The sum of squares is not finite, or very large, if an element is.
    with np.errstate(over="ignore", invalid="ignore"):
        for t, x in _pieces(truth, side):
            if exact:
                t, x = np.ones(t.size), (x != t) + 1.0
            difference = np.subtract(x, t, dtype=np.float64)
            t_t, d_d = float(t @ t), float(difference @ difference)
            if not 3 * t_t + 2 * d_d < _LARGE * _LARGE:  # ≥ Σt² + Σx²
                t, x, lost = _comparable(t, x.astype(np.float64, copy=False))
                total += lost
                if not t.size:
                    continue
                difference = x - t
                t_t, d_d = float(t @ t), float(difference @ difference)
            x_x, x_t = _products(t, x, difference, t_t, d_d)
            error, product = error + d_d, product + x_t
            t_total, x_total, counted = t_total + t_t, x_total + x_x, counted + t.size
            np.abs(difference, out=difference)
            place = int(difference.argmax())
            if difference[place] > worst:
                worst, beside = float(difference[place]), abs(float(t[place]))
            if elementwise:
                values = x.astype(np.float64, copy=False)
                farthest = max(farthest, float(ulps(t, values, dtype).max()))
            if histogram:
                bins = _binned(difference) if bins is None else bins + _binned(difference)
    return total + Sums(
        error, t_total, x_total, product, worst, beside, farthest, counted, bins=bins
    )


def _products(
    t: Floats, x: Array, difference: Floats, t_t: float, d_d: float
) -> tuple[float, float]:
    """Sums Σx² and Σxt, from the difference where that loses nothing: it saves a product of long vectors."""
    if 4 * d_d > t_t:
        x = x.astype(np.float64, copy=False)
        return float(x @ x), float(x @ t)
    t_d = float(t @ difference)
    return t_t + 2 * t_d + d_d, t_t + t_d


def _comparable(t: Floats, x: Floats) -> tuple[Floats, Floats, Sums]:
    """Remove masked elements and elements that are not finite, after counting them."""
    undefined, masked, other = np.isnan(t), _masked(t), _masked(x)
    numbers = np.isfinite(t) & np.isfinite(x) & ~masked & ~other
    same = (masked & other) | (~numbers & (t == x))
    lost = Sums(
        undefined=int(undefined.sum()),
        filled=int((undefined & ~np.isnan(x)).sum()),
        not_finite=int((~(numbers | undefined | same)).sum()),
    )
    return t[numbers], x[numbers], lost


class Measurement:
    """Errors of a tensor, collected over inputs.

    Args:
        dtype: name of the side's dtype.
        elementwise: whether units in the last place are meaningful for the operation.
        histogram: whether `histogram` will be called; it costs as much as everything else.
    """

    def __init__(self, dtype: str, *, elementwise: bool = False, histogram: bool = False) -> None:
        self.dtype = dtype
        self.elementwise = elementwise and floating(dtype) is not None
        self._histogram = histogram
        self._inputs: dict[int, Sums] = {}

    def add(self, number: int, truth: Array, side: Array) -> None:
        """Add a tensor of the input with this number; both have the same shape.

        Raises:
            ValueError: the shapes differ.
        """
        self.take(
            number,
            measure(
                truth, side, self.dtype, elementwise=self.elementwise, histogram=self._histogram
            ),
        )

    def take(self, number: int, sums: Sums) -> None:
        """Add the result of `measure`."""
        known = self._inputs.get(number)
        self._inputs[number] = sums if known is None else known + sums

    @property
    def total(self) -> Sums:
        """Sums over all inputs."""
        return sum(self._inputs.values(), Sums())

    @property
    def rms(self) -> float:
        """Root mean square of t over all inputs."""
        total = self.total
        return math.sqrt(total.truth / max(total.counted, 1))

    @property
    def beside(self) -> float:
        """Magnitude |t| of the element with the largest error, over rms(t).

        If elements of the truth differ much in magnitude, rounding the largest element causes an error that
        is large relative to the RMS.
        """
        return _over(self.total.beside, self.rms)

    def errors(self) -> Errors:
        """Return the errors.

        Formulas: relative L2 = √(Σ(x-t)² / Σt²); max / RMS = max|x-t| / √(Σt²/n); cosine = Σxt / √(Σx² Σt²).
        Source for normwise instead of elementwise errors: Higham, *Accuracy and Stability*, 2nd ed., ch. 3.
        """
        total = self.total
        norms = math.sqrt(total.truth) * math.sqrt(total.side)
        return Errors(
            relative_l2=total.relative_l2,
            max_over_rms=math.inf if total.not_finite else _over(total.worst, self.rms),
            cosine=total.product / norms
            if norms and math.isfinite(norms)
            else float(total.error == 0),
            ulps=total.ulps if self.elementwise else None,
            not_finite=total.not_finite,
            elements=total.elements,
            per_input=tuple(sums.relative_l2 for _, sums in sorted(self._inputs.items())),
            undefined=total.undefined,
            filled=total.filled,
        )

    def histogram(self) -> tuple[int, ...]:
        """Counts of log10(|x - t| / rms(t)) between `EDGES`; values beyond are in the outermost bins."""
        counts = [0] * (len(EDGES) - 1)
        bins, rms = self.total.bins, self.rms
        shift = round(math.log10(rms) * 4) if rms else 0
        for place, count in enumerate([] if bins is None else bins.tolist()):
            counts[min(max(place - 120 - shift, 0), len(counts) - 1)] += count
        return tuple(counts)


def errors(
    truth: Iterable[Array], side: Iterable[Array], *, dtype: str, elementwise: bool = False
) -> Errors:
    """Errors of a tensor of a side over its inputs; see `Measurement`."""
    measured = Measurement(dtype, elementwise=elementwise)
    for number, (t, x) in enumerate(zip(truth, side, strict=True)):
        measured.add(number, t, x)
    return measured.errors()


def is_mask(array: Array) -> bool:
    """Whether an array has only zeros and one value below -1000: a mask that is added to scores."""
    if array.dtype.kind != "f" or array.size == 0:
        return False
    for part in (array.flat[:64], array):
        low = part.min()
        if not np.all((part == 0) | (part == low)) or not (low == 0 or low < -1000):
            return False
    return bool(low < -1000)


def _masked(values: Floats) -> Array:
    """Elements that are minus infinity, a dtype's most negative number, or -10^k plus something small."""
    masked = values < -1e30
    large = ~masked & (values < _LARGE)
    if large.any():
        power = np.log10(-values, where=large, out=np.full_like(values, 0.5))
        masked |= np.abs(power - np.rint(power)) < 1e-6
    return masked


def _binned(difference: Floats) -> Array:
    """Counts of log10 of the errors before rms(t) is known; `Measurement.histogram` shifts them by it."""
    count = len(EDGES) + 240
    with np.errstate(divide="ignore"):
        places = np.floor((np.log10(difference) - EDGES[0]) * 4)
    places = np.clip(np.nan_to_num(places, neginf=-1e9), -120, count - 121)
    return np.bincount(places.astype(np.int64) + 120, minlength=count)


def _pieces(truth: Array, side: Array) -> Iterator[tuple[Floats, Array]]:
    """Yield pieces of both in the same order, for any memory layout; the truth in float64."""
    if truth.flags.c_contiguous and side.flags.c_contiguous:
        flat = truth.reshape(-1), side.reshape(-1)
        for start in range(0, truth.size, PIECE):
            end = start + PIECE
            yield (
                flat[0][start:end].astype(np.float64, copy=False),
                flat[1][start:end],
            )
    elif truth.size:
        pieces = np.nditer(
            (truth, side),
            flags=["external_loop", "buffered"],
            op_flags=[["readonly"], ["readonly"]],
            op_dtypes=["f8", "f8"],
            casting="unsafe",
            buffersize=PIECE,
        )
        yield from pieces


def _over(error: float, size: float) -> float:
    """Quotient; 0 for no error, infinite for a division by zero."""
    if error == 0:
        return 0.0
    quotient = error / size if size else math.inf
    return math.inf if math.isnan(quotient) else quotient
