"""Fit a torchvision-style checkpoint to a Flax ResNet whose names are its own, and compare the outputs.

python examples/resnet_target/run.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax_resnet
import jax
import numpy as np
import torch
import torch_resnet

import converters

TOLERANCE = 1e-5
HERE = Path(__file__).resolve().parent
MIGRATE = Path(sys.executable).with_name("migrate")


def main() -> int:
    torch.manual_seed(0)
    model = torch_resnet.ResNet().eval()
    images = torch.rand(4, 3, 64, 64)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, output = Path(folder) / "resnet.pt", Path(folder) / "resnet.safetensors"
        torch.save(model.state_dict(), checkpoint)
        command = [
            *(MIGRATE, "weights", checkpoint, "--model", f"{HERE / 'torch_resnet.py'}:ResNet"),
            *("--target", f"{HERE / 'flax_resnet.py'}:ResNet"),
            *("--inputs", "x=float32[2,3,64,64]", "-o", output),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            return done.returncode
        print(done.stdout.splitlines()[-1])
        variables = converters.load_pytree(output)

    with torch.no_grad():
        expected = model(images).numpy()
    with jax.default_matmul_precision("highest"):
        actual = flax_resnet.ResNet().apply(variables, np.moveaxis(images.numpy(), 1, -1))
    difference = float(np.abs(np.asarray(actual) - expected).max())
    agree = difference <= TOLERANCE
    print(f"logits of {len(images)} images: max |flax - torch| = {difference:.1e}")
    print(f"{'equal' if agree else 'NOT EQUAL'} to {TOLERANCE:g}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
