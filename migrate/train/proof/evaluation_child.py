"""The evaluations of a written program in a process of its own, on the weights of its script.

python -m migrate.train.proof.evaluation_child FOLDER QUESTION OUTPUT
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.train.proof.evaluations import evaluated


def main() -> None:
    """Evaluate with the weights of each moment in QUESTION, and write the values."""
    folder, question, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    import jax

    sites, moments = pickle.loads(question.read_bytes())
    train: Any = import_module("train")
    results: dict[str, Any] = {}
    with jax.default_matmul_precision("highest"):
        for update, weights in moments.items():
            evaluated(train.load(weights), sites, update, results)
    np.savez(output, **results)


if __name__ == "__main__":
    main()
