"""How long 32 layers compile as a scan (`migrate port --scan`), beside the loop.

    python benchmarks/port_scan.py [--layers 32] [--remat dots]

A small Llama is ported twice, with `--scan` and without, and both ports are made with 32 layers. Tracing,
lowering and compiling are measured for the outputs and for a training step (outputs and gradients), by the
TPU's compiler (v5e, ahead of time) and by the CPU's, in seconds of the processor, so that other programs do
not count. A loop of a single layer is measured beside it: what is around the layers takes that time in any
form. Exit code 1 if the ratio is above 0.3 for the TPU.
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
from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import program_of_jax

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


def seconds(function: Any, *arguments: Any) -> dict[str, float]:
    """Seconds of the processor to trace, lower and compile a function of these shapes, for each compiler."""
    start = time.process_time()
    lowered = jax.jit(function).lower(*arguments)
    read = time.process_time() - start
    lowered.compile()
    times = {"CPU": time.process_time() - start}
    compiled = compile_for_tpu(program_of_jax(function, *arguments), [{}], timeout=900)
    if compiled.undetermined:
        print(f"TPU: {compiled.undetermined}")
    else:
        times["TPU"] = read + compiled.worked
    return times


def compile_times(model: Any, ids: Any) -> dict[tuple[str, str], float]:
    """Seconds to compile the outputs, and a training step, by compiler."""
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), input_ids=ids))

    def loss(variables: Any, ids: Any) -> Any:
        logits = model.apply(variables, input_ids=ids)["logits"]
        return jnp.square(logits).mean()

    programs = {
        "outputs": lambda variables, ids: model.apply(variables, input_ids=ids),
        "training step": jax.value_and_grad(loss),
    }
    return {
        (program, compiler): time
        for program, function in programs.items()
        for compiler, time in seconds(function, variables, ids).items()
    }


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
        for name, scan, layers in (
            ("loop", False, options.layers),
            ("one layer", False, 1),
            ("scan", True, options.layers),
        ):
            written = port(module, inputs, repeats=Repeats(scan, options.remat))
            package = Path(folder, f"llama_{name.replace(' ', '_')}")
            model = imported(written, package, {"num_hidden_layers": layers})
            times[name] = compile_times(model, ids)
    slow = False
    for (program, compiler), loop in times["loop"].items():
        scanned, single = (times[name][program, compiler] for name in ("scan", "one layer"))
        row = {
            "program": f"Llama, {options.layers} layers, --remat {options.remat}: {program}, {compiler}",
            "loop, s": round(loop, 2),
            "scan, s": round(scanned, 2),
            "scan ÷ loop": round(scanned / loop, 3),
            "one layer ÷ loop": round(single / loop, 3),
        }
        print(", ".join(f"{column}: {value}" for column, value in row.items()))
        append("port-scan", row)
        slow |= compiler == "TPU" and scanned / loop > GOAL
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
