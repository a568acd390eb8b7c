"""The program gives the losses of the first 5 updates of before.py.

python -m pytest test_same.py
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import train

RECORDED = Path(__file__).with_name("recorded.npz")
INPUTS = {"inputs": ("inputs", ()), "labels": ("labels", ())}


def updates():
    """The recorded updates: micro-batches, and the script's losses."""
    recorded = np.load(RECORDED)
    for number in range(int(recorded["updates"])):
        micro = []
        for position in range(int(recorded[f"{number}/micro"])):
            batch = {}
            for name, (root, path) in INPUTS.items():
                put(batch, (root, *path), recorded[f"{number}/{position}/{name}"])
            micro.append(batch)
        yield micro, recorded[f"{number}/losses"]


def put(batch, keys, value):
    """Put a value into nested dictionaries; the loss reads lists by index too."""
    *above, last = keys
    for key in above:
        batch = batch.setdefault(key, {})
    batch[last] = value


def test_losses_are_the_scripts():
    with jax.default_matmul_precision("highest"):
        state = train.load()
        for micro, expected in updates():
            state, losses, _ = train.train_step(state, micro)
            np.testing.assert_allclose(np.array(losses), expected, rtol=1e-5)
