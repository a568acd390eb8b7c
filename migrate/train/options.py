"""Options of `migrate train`, and of the comparison of a program with its script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainOptions:
    """Options of `migrate train`.

    Attributes:
        script: the training script.
        output: the folder of the program.
        args: arguments of the script.
        updates: updates of the weights to record and to compare.
        force: how often `--force` was given.
        proof: whether the program is compared with the script.
        timeout: seconds for one run.
        scores: variable of the script with the scores of a rollout, as `function:name`.
        batch_names: variables of a micro-batch, comma-separated, each as `name` or `function:name`.
        global_mean: whether an update's loss is the mean over all elements of its micro-batches.
    """

    script: Path
    output: Path
    args: tuple[str, ...] = ()
    updates: int = 5
    force: int = 0
    proof: bool = True
    timeout: float = 600.0
    scores: str = ""
    batch_names: str = ""
    global_mean: bool = False
