"""Named sets of limits, each with its source; docs/parity/limits.md describes how they act together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.kinds import OperationClass
from migrate.parity.judge.metrics import Floating, floating

_OP_LEVEL = "relative L2 of matmuls measured over k = 4..16384"
_JAX = "jax.test_util: 1e-6 for float32, 1e-2 for bfloat16"


@dataclass(frozen=True)
class Limit:
    """Number that a measured value must not exceed.

    Attributes:
        value: the number.
        what: the limited value, in a few words.
        source: origin of the number.
    """

    value: float
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.what} ≤ {self.value:.3g}: {self.source}"


@dataclass(frozen=True)
class Profile:
    """Limits of a comparison.

    Attributes:
        name: "f32-highest", "f32-high", "tpu-default", "bf16".
        dtype: name of the sides' dtype.
        what: one line on when it applies.
        operations: relative L2 of a layer that is fed with the truth's inputs, by class of operation.
        ulps: units in the last place for elementwise operations, in the dtype; decides with `strict` only.
        peak: max / RMS is limited by this times the relative L2 limit times √(2 ln n).
        ratio: limit of the lower 95 % bound of ρ.
        kl, kl_tail: Kullback-Leibler divergence of the softmax of the logits, mean and 99.9th percentile.
        margin: the top token must agree where the truth's margin exceeds this many σ, σ being the standard
            deviation of the logits' error.
        gradient: relative L2 of a gradient, times √depth.
        loss: relative difference of the loss of the first step.
        band: distance of the two sides' loss curves, as a fraction of the distance between seeds' loss
            curves.
        strict: whether the absolute limits hold even where the emulation exceeds them.
    """

    name: str
    dtype: str
    what: str
    operations: Mapping[OperationClass, Limit]
    ulps: Limit
    peak: Limit
    ratio: Limit
    kl: Limit
    kl_tail: Limit
    margin: Limit
    gradient: Limit
    loss: Limit
    band: Limit
    strict: bool = False

    @property
    def floating(self) -> Floating:
        """Properties of its dtype."""
        properties = floating(self.dtype)
        assert properties is not None
        return properties

    @property
    def floor(self) -> float:
        """Relative L2 of a correct rounding, the smallest meaningful error."""
        return self.floating.rounding_error

    def local(self, operation: OperationClass, *, steps: int = 1) -> float:
        """Return the limit of relative L2 of a layer's own error.

        Args:
            operation: class of the layer's operation.
            steps: time steps of a recurrent layer (errors of steps add up like √T); positions of a
                positional layer (an angle of position p is off by p·u of float32, in which angles are to be
                computed whatever the dtype).
        """
        limit = self.operations[operation].value
        if operation is OperationClass.RECURRENT:
            return limit * math.sqrt(max(steps, 1))
        if operation is OperationClass.POSITIONAL:
            return max(limit, 2 * 2**-24 * steps)
        return limit

    def accumulated(self, depth: int) -> float:
        """Limit of relative L2 after this many leaf layers: that of one contraction, times √depth."""
        return self.operations[OperationClass.MATMUL].value * math.sqrt(max(depth, 1))

    def peak_limit(self, relative_l2: float, elements: int) -> float:
        """Limit of max / RMS of n elements: 6 · limit · √(2 ln n)."""
        return self.peak.value * relative_l2 * math.sqrt(2 * math.log(max(elements, 3)))


def _operations(
    matmul: Limit, dtype: str, other: float, source: str
) -> Mapping[OperationClass, Limit]:
    kind = floating(dtype)
    assert kind is not None
    same = {
        operation: Limit(other, f"local relative L2, {operation}", source)
        for operation in (
            OperationClass.NORMALIZATION,
            OperationClass.SOFTMAX,
            OperationClass.ELEMENTWISE,
        )
    }
    contractions = {
        operation: dataclasses.replace(matmul, what=f"local relative L2, {what}")
        for operation, what in (
            (OperationClass.MATMUL, "matmul"),
            (OperationClass.RECURRENT, "recurrent, · √T"),
            (OperationClass.COMPOSITE, "what a layer computes between the layers inside it"),
        )
    }
    movement = Limit(
        kind.roundoff,
        "local relative L2, movement",
        f"u = 2^-{kind.bits} of {dtype}: values are moved, rounded once at most",
    )
    positional = Limit(
        other,
        "local relative L2, positional, or 2 · 2^-24 · positions",
        "the angle p·f is rounded in float32: p·u",
    )
    return {
        **contractions,
        **same,
        OperationClass.MOVEMENT: movement,
        OperationClass.POSITIONAL: positional,
    }


_PEAK = Limit(
    6.0,
    "max / RMS over limit · √(2 ln n)",
    "measured of correct layers; extreme value of n normal errors",
)
_RATIO = Limit(
    2.0,
    "ρ = err(side) / err(E), lower 95 % bound",
    "measured of correct layers; msprobe's L1 and L2 take 2 and 1.5",
)
_MARGIN = Limit(
    6 * math.sqrt(2),
    "margin below which the top token may differ, in σ",
    "measured: none flipped above it",
)
_BAND = Limit(
    1.0, "distance of the loss curves over that of two seeds", "two seeds are as far apart"
)
_TAIL = "10.8 × the mean: the 99.9th percentile of χ² with one degree, as KL ≈ ½σ²"


def _logits(kl: float, source: str) -> tuple[Limit, Limit]:
    return (
        Limit(kl, "KL of the logits' softmax, mean", source),
        Limit(10.8 * kl, "KL of the logits' softmax, 99.9th percentile", _TAIL),
    )


def _profile(
    name: str,
    what: str,
    *,
    dtype: str,
    matmul: Limit,
    other: float,
    source: str,
    kl: tuple[Limit, Limit],
) -> Profile:
    return Profile(
        name,
        dtype,
        what,
        _operations(matmul, dtype, other, source),
        Limit(
            8,
            f"units in the last place of {dtype}, elementwise",
            "one function of libm or XLA: 1 to 4; an activation has two; strict only",
        ),
        _PEAK,
        _RATIO,
        *kl,
        _MARGIN,
        Limit(
            4 * matmul.value,
            "relative L2 of a gradient, · √depth",
            "two contractions per layer, and both errors of the forward pass: 4 × its limit",
        ),
        Limit(2 * matmul.value, "relative difference of the first loss", "the outputs', squared"),
        _BAND,
    )


_F32_REST = f"float32, {_JAX}; correct ones measured below 3e-7"
_MAXTEXT = "MaxText: 1e-4 in float32"
_KL_16 = "KL ≈ ½σ²: σ = 0.17, where top tokens begin to flip"

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        _profile(
            "f32-highest",
            "float32 everywhere, six passes on a TPU",
            dtype="float32",
            matmul=Limit(1e-6, "", f"six passes / float32: {_OP_LEVEL} (1.8e-7, CPU up to 4.2e-7)"),
            other=1e-6,
            source=_F32_REST,
            kl=_logits(1e-4, _MAXTEXT),
        ),
        _profile(
            "f32-high",
            "float32, three bf16 passes in matmuls on a TPU",
            dtype="float32",
            matmul=Limit(3e-5, "", f"three passes: {_OP_LEVEL} (1.29e-5)"),
            other=1e-6,
            source=_F32_REST,
            kl=_logits(1e-4, _MAXTEXT),
        ),
        _profile(
            "tpu-default",
            "float32, one bf16 pass in matmuls: a TPU's default",
            dtype="float32",
            matmul=Limit(5e-3, "", f"one pass: {_OP_LEVEL} (2.36e-3)"),
            other=1e-6,
            source=_F32_REST,
            kl=_logits(0.015, _KL_16),
        ),
        _profile(
            "bf16",
            "bfloat16 parameters and activations",
            dtype="bfloat16",
            matmul=Limit(
                5e-3, "", "inputs, weights and result rounded: √3 · 1.66e-3, measured 2.9e-3"
            ),
            other=5e-3,
            source=f"input and result rounded: √2 · 1.66e-3; {_JAX}",
            kl=_logits(0.015, _KL_16),
        ),
    )
}


def find_profile(name: str, *, strict: bool = False) -> Profile:
    """Return the profile of this name.

    `strict` changes three limits:

    - the absolute limit alone decides, even where the emulation exceeds it too; - ρ alone decides as well,
    with a limit of 1.5 (msprobe's second level), for errors of more than four roundings; - elementwise
    operations must keep `ulps`, or twice the emulation's.

    Raises:
        ParityError: there is no such profile.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise ParityError(f"no profile {name}", f"take one of {', '.join(PROFILES)}")
    if not strict:
        return profile
    ratio = Limit(1.5, _RATIO.what, "msprobe's second level; with --strict it decides alone")
    return dataclasses.replace(profile, ratio=ratio, strict=True)


def profile_for(a: RunFacts, b: RunFacts, name: str | None, *, strict: bool = False) -> Profile:
    """Return the profile that the user names, else the result of `choose_profile`.

    Raises:
        ParityError: there is no such profile.
    """
    if name is not None:
        return find_profile(name, strict=strict)
    return choose_profile(a, b, strict=strict)


def choose_profile(a: RunFacts, b: RunFacts, *, strict: bool = False) -> Profile:
    """Choose the profile for the declared dtypes and precisions of the sides: the coarser of the two
    decides.

    A dtype of 16 bits on either side selects bf16. Otherwise the precision of matmuls decides, if the device
    or its emulation obeys it.
    """
    if any(side.dtype in ("bfloat16", "float16") for side in (a, b)):
        return find_profile("bf16", strict=strict)
    names = {"default": "tpu-default", "high": "f32-high"}
    for precision, name in names.items():
        if any(side.precision == precision and _obeys(side) for side in (a, b)):
            return find_profile(name, strict=strict)
    return find_profile("f32-highest", strict=strict)


def _obeys(facts: RunFacts) -> bool:
    """Whether the arithmetic has the declared precision: a CPU knows only float32."""
    return facts.emulated or not facts.device.lower().startswith("cpu")


def limits_as_text(profile: Profile) -> tuple[str, ...]:
    """Limits of a profile, one a line, with their sources."""
    head = f"{profile.name}{' (strict)' if profile.strict else ''}: {profile.what}"
    accumulated = dataclasses.replace(
        profile.operations[OperationClass.MATMUL],
        what="accumulated relative L2 over √depth",
        source="measured: errors grow as depth^0.27..0.43",
    )
    together = (
        "each of relative L2, max / RMS and ρ decides alone"
        if profile.strict
        else "a layer parts where it exceeds its limit and, if there is an emulation, also ρ"
    )
    limits = (
        *profile.operations.values(),
        accumulated,
        profile.peak,
        profile.ratio,
        *((profile.ulps,) if profile.strict else ()),
        profile.kl,
        profile.kl_tail,
        profile.margin,
        profile.gradient,
        profile.loss,
        profile.band,
    )
    return (head, together, *map(str, limits))
