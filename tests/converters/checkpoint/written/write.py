"""Writes one of the folders beside this file: `python write.py`, with any Python and any torch from 2.2 on.

Each holds the same checkpoint, as that Python pickles it and that torch arranges it. Where none of the kind
is at hand any more, the folder still is.
"""

import os
import platform
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

WEIGHT = torch.arange(6.0).reshape(2, 3) / 8
BIAS = torch.tensor([0.5, -1.0])


def main():
    os.chdir(Path(__file__).parent)  # the checkpoint's path is written into it
    version = torch.__version__.partition("+")[0]
    folder = Path(f"python{platform.python_version()}-torch{version}")
    state = {"model": {"weight": WEIGHT, "bias": BIAS}, "epoch": 3}
    dcp.save(state, checkpoint_id=folder)


if __name__ == "__main__":
    main()
