"""The same step by both roads, torch_xla and Flax: memory, operations, exchanges and fusions side by side.

    python benchmarks/fit_sides.py

A step of AdamW of the models of examples/, on a v5e-8, a batch of 64 on each device. Fusions are those of the
compiled program's entry. Exit code 1 where a side does not fit.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from history import append

ROOT = Path(__file__).parents[1]
COLUMNS = ("HBM, MB", "operations, G", "exchanged, MB", "all-reduces", "fusions", "bound")
sys.path.insert(0, str(ROOT))
EXAMPLES = ROOT / "examples"
# The model, and for each road where it is and what it takes.
MODELS = {
    "mlp": (
        ("mlp/torch_mlp.py:MLP", "x=float32[64,784]"),
        ("mlp/flax_mlp.py:MLP", "x=float32[64,784]"),
    ),
    "parity_port": (
        ("parity_port/net.py:Net", "x=float32[64,3,32,32]"),
        ("parity_port/flax_net.py:corrected", "x=float32[64,32,32,3]"),
    ),
    "resnet_target": (
        ("resnet_target/torch_resnet.py:ResNet", "x=float32[64,3,64,64]"),
        ("resnet_target/flax_resnet.py:ResNet", "image=float32[64,64,64,3]"),
    ),
}


def main() -> int:
    """Print the table."""
    code = 0
    print(f"| model | road | {' | '.join(COLUMNS)} |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name, sides in MODELS.items():
        for road, (target, inputs) in zip(("torch_xla", "Flax"), sides, strict=True):
            row = measured(target, inputs)
            code |= not row
            print(f"| {name} | {road} | {row or 'no verdict'} |", flush=True)
            if row:
                cells = dict(zip(COLUMNS, row.split(" | "), strict=True))
                append("fit-sides", {"model, road": f"{name}, {road}"} | cells)
    return code


def measured(target: str, inputs: str) -> str:
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # a cache of its own: the compiled text lies in it
        command = [sys.executable, "-c", "from migrate.cli import main; main()", "fit", "--json"]
        command += [str(EXAMPLES / target), "--inputs", inputs, "--train", "adamw"]
        ran = subprocess.run(
            [*command, "--loss", "mse", "--tpu", "v5e-8"],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": folder, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        if ran.returncode:
            print(ran.stderr.strip(), file=sys.stderr)
            return ""
        (told,) = json.loads(ran.stdout)["slices"]
        (kept,) = Path(folder).rglob("*.json.gz")
        fusions = fusions_in(json.loads(gzip.decompress(kept.read_bytes())))
    exchanges = told["collectives"]
    cells = [
        f"{told['hbm']['needed'] / 1e6:.2f}",
        f"{told['flops'] / 1e9:.2f}",
        f"{sum(one['bytes'] for one in exchanges) / 1e6:.2f}",
        str(sum(one["times"] for one in exchanges)),
        str(fusions),
        f"{told['lower_bound']['seconds'] * 1e6:.1f} µs by {told['lower_bound']['by']}",
    ]
    return " | ".join(cells)


def fusions_in(kept: dict[str, Any]) -> int:
    from migrate.compiler.hlo import HloModule

    (text,) = kept["texts"]
    return sum(one.opcode == "fusion" for one in HloModule(text).entry.values())


if __name__ == "__main__":
    sys.exit(main())
