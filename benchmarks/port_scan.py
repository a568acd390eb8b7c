"""How long 32 layers compile as a scan (`migrate port --scan`), beside the loop.

    python benchmarks/port_scan.py [--layers 32] [--remat dots]

A small Llama is ported twice, with `--scan` and without, and both ports are made with 32 layers. Tracing,
lowering and compiling are measured for the outputs and for a training step (outputs and gradients), in
seconds of the processor, so that other programs do not count. Exit code 1 if the ratio is above 0.3.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import torch
from history import append

from benchmarks.zoo_models.port_package import imported
from converters.graph import port
from converters.graph.writing.repeated.repeats import KEPT, Repeats

GOAL = 0.3
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


def seconds(function: Any, *arguments: Any) -> float:
    """Seconds of the processor to trace, lower and compile a function of these shapes."""
    start = time.process_time()
    jax.jit(function).lower(*arguments).compile()
    return time.process_time() - start


def compile_times(model: Any, ids: Any) -> tuple[float, float]:
    """Seconds to compile the outputs, and a training step."""
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), input_ids=ids))

    def loss(variables: Any, ids: Any) -> Any:
        logits = model.apply(variables, input_ids=ids)["logits"]
        return jnp.square(logits).mean()

    outputs = seconds(lambda variables, ids: model.apply(variables, input_ids=ids), variables, ids)
    return outputs, seconds(jax.value_and_grad(loss), variables, ids)


def main() -> int:
    """Measure, and append to the history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--remat", choices=KEPT, default="all")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    module = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    inputs = {"input_ids": torch.arange(32).reshape(2, 16)}
    ids = jnp.arange(32).reshape(2, 16)
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, scan in (("loop", False), ("scan", True)):
            written = port(module, inputs, repeats=Repeats(scan, options.remat))
            model = imported(
                written, Path(folder, f"llama_{name}"), {"num_hidden_layers": options.layers}
            )
            times[name] = compile_times(model, ids)
    ratios = [scan / loop for scan, loop in zip(times["scan"], times["loop"], strict=True)]
    rows = {
        "model": f"Llama, {options.layers} layers, --remat {options.remat}",
        "loop, outputs, s": round(times["loop"][0], 2),
        "scan, outputs, s": round(times["scan"][0], 2),
        "outputs, scan ÷ loop": round(ratios[0], 3),
        "loop, training step, s": round(times["loop"][1], 2),
        "scan, training step, s": round(times["scan"][1], 2),
        "training step, scan ÷ loop": round(ratios[1], 3),
    }
    for name, value in rows.items():
        print(f"{name}: {value}")
    append("port-scan", rows)
    return int(max(ratios) > GOAL)


if __name__ == "__main__":
    sys.exit(main())
