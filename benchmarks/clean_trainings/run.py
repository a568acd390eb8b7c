"""Prove 20 clean small trainings: none of them may be called different.

    python benchmarks/clean_trainings/run.py [NUMBER…]

`train.py`, as the tool rewrites it, with batch normalization or a transformer, SGD, Adam and AdamW at small
and large learning rates, in float32 and with autocast, on 2 and 4 ranks, with 5 seeds. Each is 5 steps, with
all parameters compared after the first, second and fifth. Exit code 1 if one is called different, or fails.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import Proof, prove
from migrate.prove.settings import Settings
from migrate.report.text.tables import plain_table
from migrate.rewrite.pipeline import rewrite

SCRIPT = Path(__file__).with_name("train.py")
STEPS = 5


@dataclass(frozen=True)
class Training:
    """One of them: what `train.py` is told, and on how many ranks it runs."""

    model: str
    optimizer: str
    rate: float
    amp: bool
    seed: int
    ranks: int
    batch: int

    def args(self) -> list[str]:
        """Of the script."""
        told = ["--model", self.model, "--optimizer", self.optimizer, "--lr", str(self.rate)]
        told += ["--seed", str(self.seed), "--batch", str(self.batch)]
        return [*told, "--amp"] if self.amp else told


# The first is mnist_ddp of CSC's pytorch-ddp-examples, with images that are made up.
TRAININGS = (
    Training("convolutions", "sgd", 1e-4, False, 0, 2, 100),
    Training("convolutions", "sgd", 0.1, False, 1, 2, 32),
    Training("convolutions", "momentum", 0.01, False, 2, 4, 16),
    Training("convolutions", "adam", 1e-3, False, 3, 2, 32),
    Training("convolutions", "adam", 1e-3, True, 4, 2, 32),
    Training("convolutions", "adamw", 1e-2, True, 0, 2, 32),
    Training("residual", "momentum", 0.1, False, 1, 2, 32),
    Training("residual", "adam", 1e-3, False, 2, 2, 16),
    Training("residual", "momentum", 0.05, True, 3, 2, 32),
    Training("residual", "adamw", 1e-3, True, 4, 4, 16),
    Training("perceptron", "sgd", 1e-3, False, 0, 2, 32),
    Training("perceptron", "momentum", 0.1, False, 1, 4, 32),
    Training("perceptron", "adam", 1e-3, False, 2, 2, 32),
    Training("perceptron", "adam", 1e-2, True, 3, 2, 32),
    Training("perceptron", "adamw", 1e-4, True, 4, 4, 16),
    Training("transformer", "sgd", 0.05, False, 0, 2, 32),
    Training("transformer", "adam", 1e-3, False, 1, 2, 32),
    Training("transformer", "adamw", 3e-4, True, 2, 2, 32),
    Training("transformer", "adamw", 1e-2, True, 3, 4, 16),
    Training("convolutions", "adam", 1e-2, False, 4, 2, 32),
)


def main(numbers: list[int]) -> int:
    """Prove them, print a row for each, and return the exit code."""
    table = plain_table("", "training", "verdict", "runs of the original", "not compared", "said")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        script, rewritten = Path(folder) / "train.py", Path(folder) / "train_xla.py"
        script.write_bytes(SCRIPT.read_bytes())
        rewritten.write_bytes(rewrite(script).data)
        for number in numbers:
            training = TRAININGS[number - 1]
            settings = Settings(steps=STEPS)
            proof = prove(
                script, rewritten, training.args(), replicas=training.ranks, settings=settings
            )
            wrong += proof.verdict in (ProofVerdict.DIFFERS, ProofVerdict.PARTED)
            table.add_row(str(number), _named(training), *_found(proof))
            Console(stderr=True).print(f"{number}: {proof.verdict.value}: {proof.message}")
    Console().print(table)
    print(f"{wrong} of {len(numbers)} clean trainings are called different")
    return 1 if wrong else 0


def _named(training: Training) -> str:
    amp = ", autocast" if training.amp else ""
    return f"{training.model}, {training.optimizer} {training.rate:g}{amp}, {training.ranks} ranks"


def _found(proof: Proof) -> tuple[str, str, str, str]:
    runs = 1 + (proof.floor.runs if proof.floor else 0)
    unjudged = sum(weight.gate is None for weight in proof.weights)
    judged = proof.weights or proof.steps
    left_out = f"{unjudged} of {len(proof.weights)} weights" if judged else ""
    return proof.verdict.value, str(runs), left_out, proof.message[:60]


if __name__ == "__main__":
    sys.exit(main([int(one) for one in sys.argv[1:]] or list(range(1, len(TRAININGS) + 1))))
