"""Convert the torch MLP's checkpoint to Flax and compare the two models' outputs.

python examples/mlp/run.py
"""

import os
import sys
import tempfile
from pathlib import Path

# The comparison is in float32 on the CPU; without this JAX would look for accelerators first.
# A TPU that is configured (JAX_PLATFORMS=tpu) is used.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax_mlp
import jax
import numpy as np
import torch
import torch_mlp

import converters

TOLERANCE = 1e-6
HERE = Path(__file__).resolve().parent


def main() -> int:
    torch.manual_seed(0)
    torch_model = torch_mlp.MLP().eval()
    images = torch.rand(32, 784)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "mlp.pt"
        torch.save(torch_model.state_dict(), checkpoint)
        conversion = converters.convert(
            checkpoint,
            model=f"{HERE / 'torch_mlp.py'}:MLP",
            output=Path(folder) / "mlp.flax.safetensors",
        )
        variables = converters.load_pytree(conversion.output)

    print(f"mlp.pt -> mlp.flax.safetensors, {conversion.parameters:,} parameters")
    for row in conversion.plan.rows:
        print(f"  {row.key:<11} {row.shape!s:<11} -> {row.path:<18} {row.target_shape}")

    with torch.no_grad():
        expected = torch_model(images).numpy()
    # TPUs multiply in bfloat16 by default; "highest" is float32 there too.
    with jax.default_matmul_precision("highest"):
        actual = np.asarray(flax_mlp.MLP().apply(variables, images.numpy()))
    difference = float(np.abs(actual - expected).max())
    agree = difference <= TOLERANCE
    print(f"logits of {len(images)} images: max |flax - torch| = {difference:.1e}")
    print(f"{'equal' if agree else 'NOT EQUAL'} to {TOLERANCE:g}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
