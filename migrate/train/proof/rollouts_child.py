"""Rollout of a program, in a process of its own: whether its scores are there.

python -m migrate.train.proof.rollouts_child FOLDER SCORES OUTPUT
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Make a rollout with the weights of the start, and write the shape of its scores."""
    folder, scores, output = sys.argv[1:]
    sys.path.insert(0, folder)
    train: Any = import_module("train")
    rollouts: Any = import_module("rollouts")
    state = train.load()
    value = rollouts.rollout(lambda: train.in_torch(state), 0)[scores]
    Path(output).write_text(json.dumps(np.shape(value)))


if __name__ == "__main__":
    main()
