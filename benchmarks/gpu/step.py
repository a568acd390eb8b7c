"""Time and memory of a port's step on a GPU, beside torch.compile of the original.

    python benchmarks/gpu/step.py [llama] [vit] [--attention auto] [--remat all] [--scan] [--rounds 10]
    python benchmarks/gpu/step.py --tiny                # a dry run on any machine, with small models

Runs on any machine with CUDA, JAX and torch. Each model is ported here. Both sides have drawn weights and
the same inputs, in bfloat16. A step is the forward pass, or outputs and gradients of a mean square. Each side
runs in a process of its own, as it takes the memory of the GPU. Prints a JSON line for each model and step:
medians in milliseconds and their ratio, and the temporaries of the port's program beside the peak of torch's
allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

# Llama 3.2 1B and ViT-L/16 → (arguments of the configuration, batch, length of tokens or side of images).
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": (
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "use_cache": False,
        },
        4,
        1024,
    ),
    "vit": (
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        64,
        224,
    ),
}
TINY: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": (
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "use_cache": False,
        },
        2,
        16,
    ),
    "vit": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 32,
            "patch_size": 8,
        },
        2,
        32,
    ),
}


def original(name: str, options: argparse.Namespace, layers: int | None = None) -> Any:
    """The torch model, with weights that are drawn."""
    import torch
    import transformers

    sizes = dict((TINY if options.tiny else MODELS)[name][0])
    if layers is not None:
        sizes["num_hidden_layers"] = layers
    torch.manual_seed(0)
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)).eval()


def given(name: str, options: argparse.Namespace, batch: int | None = None) -> dict[str, Any]:
    """Inputs of a step, in numpy."""
    import numpy as np

    sizes, rows, side = (TINY if options.tiny else MODELS)[name]
    rows = rows if batch is None else batch
    generator = np.random.default_rng(0)
    if name == "llama":
        tokens = generator.integers(0, sizes["vocab_size"], (rows, side))
        return {"input_ids": tokens.astype("int32")}
    return {"pixel_values": generator.normal(size=(rows, 3, side, side)).astype("float32")}


def median(step: Callable[[], None], rounds: int) -> float:
    """Milliseconds of a step."""
    times = []
    for number in range(rounds + 3):
        start = time.perf_counter()
        step()
        if number >= 3:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def of_torch(name: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures of torch.compile."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = original(name, options).to(device, torch.bfloat16)
    inputs = {
        key: torch.tensor(array, device=device) for key, array in given(name, options).items()
    }
    inputs = {
        key: tensor.long() if tensor.dtype == torch.int32 else tensor.bfloat16()
        for key, tensor in inputs.items()
    }
    compiled = torch.compile(model, backend="eager" if options.tiny else "inductor")

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        with torch.no_grad():
            compiled(**inputs)
        wait()

    def training() -> None:
        model.zero_grad()
        compiled(**inputs).logits.float().square().mean().backward()
        wait()

    figures = {}
    for step in (forward, training):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        figures[step.__name__] = {
            "ms": median(step, options.rounds),
            "peak": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        }
    return figures


def of_port(name: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures of the port, written from a model of two layers."""
    import jax
    import jax.numpy as jnp
    import torch

    from benchmarks.zoo_models.port_package import imported
    from converters.graph import port
    from converters.graph.writing.repeated.repeats import Repeats

    examples = {
        key: torch.tensor(array).long() if array.dtype == "int32" else torch.tensor(array)
        for key, array in given(name, options, batch=2).items()
    }
    repeats = Repeats(options.scan, options.remat, options.attention)
    written = port(original(name, options, layers=2), examples, repeats=repeats)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {
            "num_hidden_layers": (TINY if options.tiny else MODELS)[name][0]["num_hidden_layers"]
        }
        model = imported(written, Path(folder, "ported"), sizes, param_dtype=jnp.bfloat16)
    inputs = {
        key: jnp.asarray(array, jnp.bfloat16 if array.dtype == "float32" else None)
        for key, array in given(name, options).items()
    }
    variables = jax.jit(lambda key: model.init(key, **inputs))(jax.random.key(0))

    def outputs(variables: Any, inputs: Any) -> Any:
        return model.apply(variables, **inputs)["logits"]

    def loss(variables: Any, inputs: Any) -> Any:
        return jnp.square(outputs(variables, inputs).astype(jnp.float32)).mean()

    figures = {}
    for step, function in (("forward", outputs), ("training", jax.value_and_grad(loss))):
        program = jax.jit(function).lower(variables, inputs).compile()

        def run(program: Any = program) -> None:
            jax.block_until_ready(program(variables, inputs))

        memory = program.memory_analysis()
        figures[step] = {
            "ms": median(run, options.rounds),
            "temporaries": getattr(memory, "temp_size_in_bytes", 0),
        }
    return figures


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="llama, vit; all by default")
    parser.add_argument("--attention", default="auto", choices=["auto", "xla", "cudnn", "splash"])
    parser.add_argument("--remat", default="all", choices=["nothing", "dots", "all"])
    parser.add_argument("--scan", action="store_true", help="Scan the layers.")
    parser.add_argument("--rounds", type=int, default=10, help="Steps to measure.")
    parser.add_argument("--tiny", action="store_true", help="Use small models: a dry run.")
    parser.add_argument("--side", choices=["torch", "port"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"{', '.join(sorted(unknown))}: unknown; known are {', '.join(MODELS)}")
    if options.side:
        side = of_torch if options.side == "torch" else of_port
        print(json.dumps(side(options.models[0], options)))
        return
    for name in options.models or MODELS:
        torch_side, port_side = (_in_process(name, side) for side in ("torch", "port"))
        for step, theirs in torch_side.items():
            ours = port_side[step]
            row = {
                "model": name,
                "step": step,
                "port, ms": round(ours["ms"], 2),
                "torch.compile, ms": round(theirs["ms"], 2),
                "port ÷ torch.compile": round(ours["ms"] / theirs["ms"], 3),
                "temporaries of the port, bytes": ours["temporaries"],
                "peak of torch, bytes": theirs["peak"],
            }
            if theirs["peak"]:
                row["temporaries ÷ peak"] = round(ours["temporaries"] / theirs["peak"], 3)
            print(json.dumps(row), flush=True)


def _in_process(name: str, side: str) -> dict[str, dict[str, float]]:
    """Figures of a side, from a process of its own."""
    command = [sys.executable, __file__, name, *sys.argv[1:], "--side", side]
    models = [word for word in sys.argv[1:] if word in MODELS]
    command = [word for at, word in enumerate(command) if at < 3 or word not in models]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {side}: ended with {done.returncode}")
    figures: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
