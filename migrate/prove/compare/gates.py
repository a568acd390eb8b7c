"""Gates of a proof: distances up to which the two sides count as equal.

The fixed gates separate clean rewrites from faulty ones in float32. On real scripts the loss drifts by about
1e-7 without growing, and parameters by up to 6e-7 over 50 steps, growing with the square root of the steps.
The smallest observed fault moved a loss by 6e-4 and a gradient norm by 1e-2.

Where the original itself moves by more when its sums are rounded differently, the gate is `MARGIN` times
that noise floor. Why 4: each side rounds by itself, so their distance is that of two independent errors. The
floor is one sample of the same distance, which may have come out small, and the gate has to hold for the
largest of several values. Clean rewrites of three nets with batch normalization were 1.8, 4.0 and 4.8 times
the floor away at their worst value, so that 4 may still be too narrow. A clean rewrite is then called
different, as it was without a floor. A floor above `CEILING` judges nothing: 4 times that is as large as
faults are.

Where both sides multiply in bfloat16, a loss may differ by 2e-4: clean scripts were 3e-5 apart at most. The
effect of bfloat16 on gradient norms and parameters depends on the model. Their fixed gates stay, so that the
noise floor judges them, which then is the effect of autocast on the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from migrate.prove.compare.noise_floor import NoiseFloor, StepFloor
from migrate.prove.recording.meters import PRINTED_GATE

# Relative to the original's value; measured drift 1e-7 to 4e-7.
LOSS_GATE = 1e-5
GRADIENT_GATE = 1e-5
BFLOAT16_LOSS_GATE = 2e-4
# Wider than the gate of `recording.meters` by the same factor as the losses'.
_PRINTED_IN_BFLOAT16 = PRINTED_GATE * BFLOAT16_LOSS_GATE / LOSS_GATE
# Relative L2 distance of a parameter, times the square root of the step; measured 1e-8 to 6e-7.
PARAMETER_GATE = 1e-5

MARGIN = 4.0
CEILING = 1e-2
# A sample of the noise may have come out small: see `record.noise.summation` for ReLUs. Further samples are
# taken only while the sides still differ by little.
NOISE_RUNS = 3
# Below this, a ReLU that takes its other branch is as likely as a fault. Such a kink shows in some directions
# of rounding only: in 4 of 16 runs of a small residual net, by 2e-5. So more samples are taken before a
# difference this small counts, and its size is no evidence for a cause.
SMALL = 1e-3
MORE_NOISE_RUNS = 9


# How to compare in float32: where autocast makes values bfloat16, and where the parameters are bfloat16.
AMP_OFF = "--amp off compares in float32"
KEEP_FLOAT32 = (
    "parameters are bfloat16 themselves, which --amp off does not change: a run of both scripts with "
    "parameters in float32 shows more"
)


@dataclass(frozen=True)
class Gates:
    """Gate of each value at each step.

    Attributes:
        floor: noise floor of the original; None: the fixed gates hold.
        bfloat16: whether both sides multiplied in bfloat16.
        moves: movement of each parameter by rounding in Adam's first step (`record.noise.adam`), the larger
            of both sides: noise like that of the floor, from the first step on.
        remedy: how to compare in float32 what is computed in bfloat16.
    """

    floor: NoiseFloor | None = None
    bfloat16: bool = False
    moves: Mapping[str, float] = field(default_factory=dict)
    remedy: str = AMP_OFF

    def loss(self, optimizer: int, step: int) -> float:
        """Gate of the relative difference of a loss."""
        fixed = BFLOAT16_LOSS_GATE if self.bfloat16 else LOSS_GATE
        return max(fixed, MARGIN * self._values(optimizer, step))

    def gradient(self, optimizer: int, step: int) -> float:
        """Gate of the relative difference of a gradient norm."""
        return max(GRADIENT_GATE, MARGIN * self._values(optimizer, step))

    def parameter(self, name: str, optimizer: int, step: int) -> float:
        """Gate of the relative distance of a parameter after a step; infinite above the ceiling."""
        floor = self.floor.at(optimizer, step).parameters.get(name, 0.0) if self.floor else 0.0
        return _weight(max(floor, self._move(name)), step)

    def final(self, name: str, last: int) -> float:
        """Gate of the relative distance of a weight after the last step; infinite above the ceiling."""
        floor = self.floor.final.get(name, 0.0) if self.floor else 0.0
        return _weight(max(floor, self._move(name)), last)

    def gradients(self, optimizer: int, step: int) -> Mapping[str, float]:
        """Movement of each parameter's gradient by rounding up to a step, as far as it is known."""
        return self.floor.at(optimizer, step).gradients if self.floor else {}

    def printed(self) -> float:
        """Gate of the relative difference of a printed number, besides its own gate."""
        if self.floor is None:
            return _PRINTED_IN_BFLOAT16 if self.bfloat16 else 0.0
        noisiest = max(judged_noise(self.floor))
        return max(MARGIN * noisiest, _PRINTED_IN_BFLOAT16 if self.bfloat16 else 0.0)

    def blind(self, optimizer: int, step: int) -> bool:
        """Whether the noise of a step is above the ceiling, so that nothing is judged from that step on."""
        return self.floor is not None and self.floor.at(optimizer, step).values > CEILING

    def _move(self, name: str) -> float:
        # Never blind by itself: only runs of the original can show that it differs from itself by more.
        return min(self.moves.get(name, 0.0), CEILING)

    def _values(self, optimizer: int, step: int) -> float:
        return _values(self.floor.at(optimizer, step)) if self.floor else 0.0


def judged_noise(floor: NoiseFloor) -> tuple[float, float]:
    """Largest noise, up to `CEILING`, of losses and gradient norms, and of final weights."""
    values = max((_values(step) for step in floor.steps if step.values <= CEILING), default=0.0)
    return values, max((far for far in floor.final.values() if far <= CEILING), default=0.0)


def _values(step: StepFloor) -> float:
    """Noise of a step's loss and gradient norm."""
    # The possible effect of addends is no observed distance: it makes no step blind.
    return max(step.values, min(step.norms, CEILING))


def _weight(floor: float, step: int) -> float:
    if floor > CEILING:
        return math.inf
    return max(PARAMETER_GATE * math.sqrt(step), MARGIN * floor)
