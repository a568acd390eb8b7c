"""Settings that make both sides of a proof alike, with the number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from migrate.counts import many

Amp = Literal["bf16", "keep", "off"]
AMPS: tuple[str, ...] = get_args(Amp)

# Device of an original: the CPU, which answers for CUDA there, or the GPUs that it was written for.
On = Literal["cpu", "cuda"]
# The environment variable with the device, for the processes of an original on GPUs.
ON = "MIGRATE_PROVE_ON"
# Both sides start from the same draws wherever the script sets no seed itself.
SEED = 0
# The environment variable with the number of steps after which the ranks stop.
STEPS = "MIGRATE_PROVE_STEPS"
# The environment variable with the path of the checkpoint to keep as it is first written.
CHECKPOINT = "MIGRATE_PROVE_CHECKPOINT"


@dataclass(frozen=True)
class Settings:
    """Settings of both sides.

    Attributes:
        deterministic: whether every dropout is off, and draws on the device are the same on both sides.
        amp: autocast in bfloat16 where the script says float16, as the rewrite has it ("bf16"), as the
            script has it ("keep"), or none ("off").
        steps: the optimizer steps after which each rank stops; None: the script runs to its end.
        start: how the original's ranks are started where there are several ways, as for
            `python -m shims --start`; None: as torchrun does.
        timeout: seconds for each run; None waits for ever.
        weights_move: whether a run that measures noise also rounds the weights differently at each step.
        half: whether a run that measures noise rounds to 16 bits where autocast would, while it is off.
        on: device of the original.
        reference: whether its ranks record their machine, for a proof on another machine.
        tf32: False lets no GPU multiply in TF32, whatever the script says.
    """

    deterministic: bool = True
    amp: Amp = "bf16"
    steps: int | None = None
    start: str | None = None
    timeout: float | None = None
    half: bool = False
    weights_move: bool = False
    on: On = "cpu"
    reference: bool = False
    tf32: bool = True

    def plugins(self) -> list[str]:
        """Plugins that every process of a recorded run loads for these settings."""
        plugins = []
        if self.deterministic:
            plugins += [
                "migrate.prove.record.listen:without_dropout",
                "migrate.prove.record.draws:install",
            ]
        if self.amp != "keep":
            how = "without_autocast" if self.amp == "off" else "autocast_in_bfloat16"
            plugins.append(f"migrate.prove.record.listen:{how}")
        if self.reference:
            plugins.append("migrate.prove.record.machine:install")
        return plugins

    def notes(self, steps: int) -> tuple[str, ...]:
        """Changes of the script by these settings, in words.

        Args:
            steps: optimizer steps of the original's run, on the rank with the most; 0: none.
        """
        changes = []
        if self.amp == "off":
            changes.append("autocast was switched off on both sides")
        if self.steps is not None and steps >= self.steps:
            changes.append(
                f"each rank stopped after {many(self.steps, 'optimizer step')} (--steps): what follows, "
                "such as evaluation and saves, was not compared"
            )
        elif self.steps is not None and steps:
            changes.append(
                f"the script takes {many(steps, 'optimizer step')}, fewer than --steps {self.steps}"
            )
        return tuple(changes)
