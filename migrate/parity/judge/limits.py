"""Limits: whether an error breaches a profile, compared with the emulation's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migrate.parity.ground.kinds import OperationClass
from migrate.parity.ground.results import Errors, Ratio
from migrate.parity.judge.bootstrap import ratio
from migrate.parity.judge.metrics import Measurement
from migrate.parity.judge.profiles import Profile

# Fraction of the positions of a maximum that may differ.
_NEAR_TIES = 0.01
# Errors of no more roundings than this are not judged by their ratio alone.
_ROUNDINGS = 4


Why = Literal["", "not finite", "relative L2", "peak", "ratio", "ulps", "unequal"]


@dataclass(frozen=True)
class TensorFinding:
    """Errors of a tensor, and their judgment.

    Attributes:
        errors: errors of the side.
        emulated: errors of E on the same tensor.
        ratio: ρ; None without E.
        limit: limit of relative L2.
        why: the exceeded limit; "" if there is none.
    """

    errors: Errors
    emulated: Errors | None
    ratio: Ratio | None
    limit: float
    why: Why

    @property
    def breach(self) -> bool:
        """Whether a limit is exceeded."""
        return bool(self.why)

    @property
    def severity(self) -> tuple[bool, float]:
        """Sort key: the larger, the more important."""
        return self.breach, self.errors.relative_l2 / self.limit if self.limit else 0.0


def finding(
    measured: Measurement,
    emulated: Measurement | None,
    profile: Profile,
    limit: float,
    *,
    operation: OperationClass | None,
    exact: bool = False,
    ties: bool = False,
) -> TensorFinding:
    """Judge a tensor.

    It breaches a limit in one of these cases:

    - the side has NaN or infinities that neither truth nor emulation has;
    - its relative L2 error exceeds the limit, and the lower 95 % bound of ρ exceeds ρ's limit;
    - its largest error exceeds 6 · limit · √(2 ln n) of the truth's RMS, the limit times that very element,
      and 4 times the emulation's largest error.

    Without an emulation the absolute limits decide alone; with a strict profile each decides alone.

    Args:
        measured, emulated: measurements of the side and of E.
        profile: the limits.
        limit: limit of relative L2.
        operation: class of the layer's operation if the error is local; None: accumulated.
        exact: whether the tensor holds integers or bools, which are equal or not.
        ties: whether one in a hundred may still differ, or twice as many as in the emulation: for
            positions of a maximum, where two values may be nearly equal.
    """
    errors = measured.errors()
    base = None if emulated is None else emulated.errors()
    if operation is OperationClass.COMPOSITE and base is not None:
        # The layer's own operations contain no contraction, if the emulation shows none.
        plain = profile.operations[OperationClass.ELEMENTWISE].value
        limit = min(limit, plain) if base.relative_l2 <= plain else limit
    rho = None if base is None else ratio(errors.per_input, base.per_input, floor=profile.floor)
    if exact:
        allowed = max(_NEAR_TIES, 2 * base.relative_l2**2 if base else 0.0) if ties else 0.0
        unequal = errors.relative_l2**2 > allowed
        return TensorFinding(errors, base, rho, allowed**0.5, "unequal" if unequal else "")
    return TensorFinding(
        errors, base, rho, limit, _why(measured, errors, base, rho, profile, limit)
    )


def _why(
    measured: Measurement,
    errors: Errors,
    base: Errors | None,
    rho: Ratio | None,
    profile: Profile,
    limit: float,
) -> Why:
    if errors.not_finite:
        return "not finite" if base is None or errors.not_finite > base.not_finite else ""
    alone = profile.strict or base is None
    if errors.relative_l2 > limit and (alone or rho is None or rho.low > profile.ratio.value):
        return "relative L2"
    peak = max(profile.peak_limit(limit, errors.elements), limit * measured.beside)
    if errors.max_over_rms > peak and (
        base is None or profile.strict or errors.max_over_rms > 4 * base.max_over_rms
    ):
        return "peak"
    return _strictly(errors, base, rho, profile) if profile.strict else ""


def _strictly(errors: Errors, base: Errors | None, rho: Ratio | None, profile: Profile) -> Why:
    """Limits of a strict profile only: ρ alone, and units in the last place.

    Units count only where the emulation stays within them: at −5 a correct GELU is off by millions.
    """
    above = errors.relative_l2 > _ROUNDINGS * profile.floor
    if rho is not None and rho.low > profile.ratio.value and above:
        return "ratio"
    if errors.ulps is None or base is None or base.ulps is None:
        return ""
    limit = profile.ulps.value
    return "ulps" if base.ulps <= limit and errors.ulps > max(limit, 2 * base.ulps) else ""
