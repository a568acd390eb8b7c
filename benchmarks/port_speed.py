"""How fast a port runs, beside Flax by hand and torchax; and what porting costs beside torch.export.

    python benchmarks/port_speed.py [llama|vit|resnet50…] [--rounds 30] [--only-port]

All on the CPU, in float32, under jit. Every ratio is of one run: the sides take turns, and of each the
quickest step counts, as what disturbs a step on a busy machine only makes it slower. Porting and torch.export
are measured in seconds of the processor, the quickest of three after one of each that is not counted (what
they import, and the sources that they read once). torchax is measured where it can be imported. Exit code 1
if a goal is missed: a step 1.05 × of the hand-written, 1.0 × of torchax; compiling 1.0 × of torchax; porting
3 × of torch.export.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import torch
from history import append

from benchmarks import flax_by_hand
from benchmarks.zoo_models.port_package import imported

GOALS = {
    "step ÷ by hand": 1.05,
    "step ÷ torchax": 1.0,
    "compile ÷ torchax": 1.0,
    "port ÷ export": 3.0,
}
LLAMA = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "use_cache": False,  # torch.export and jit take no cache among the results
}
VIT = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "image_size": 96,
    "patch_size": 8,
}


def llama() -> tuple[Any, dict[str, Any], Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = torch.randint(0, 512, (4, 128), generator=torch.Generator().manual_seed(0))
    return LlamaForCausalLM(LlamaConfig(**LLAMA)), {"input_ids": ids}, flax_by_hand.Llama()


def vit() -> tuple[Any, dict[str, Any], Any]:
    from transformers import ViTConfig, ViTModel

    image = torch.randn(4, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    model = ViTModel(ViTConfig(**VIT), add_pooling_layer=False)
    return model, {"pixel_values": image}, flax_by_hand.ViT()


def resnet50() -> tuple[Any, dict[str, Any], Any]:
    from transformers import ResNetConfig, ResNetModel

    image = torch.randn(4, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    return ResNetModel(ResNetConfig()), {"pixel_values": image}, flax_by_hand.ResNet50()


MODELS = {"llama": llama, "vit": vit, "resnet50": resnet50}


# Measuring.


def quickest(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of the quickest step of each side; they take turns."""
    found = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, step in sides.items():
            began = time.perf_counter()
            jax.block_until_ready(step())
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def measured(name: str, rounds: int, folder: Path, only_port: bool) -> dict[str, float]:
    from converters.graph import port

    torch.manual_seed(0)
    model, inputs, by_hand = MODELS[name]()
    model.eval()
    arrays = {key: jnp.asarray(one.numpy()) for key, one in inputs.items()}
    port_seconds, export_seconds = [], []
    auto = torch.export.Dim.AUTO
    free = {
        key: dict.fromkeys(range(one.dim()) if one.dim() < 4 else range(1), auto)
        for key, one in inputs.items()
    }
    for _ in range(4):
        began = time.process_time()
        made = port(model, inputs)
        port_seconds.append(time.process_time() - began)
        began = time.process_time()
        torch.export.export(
            model, (), dict(inputs), dynamic_shapes=_given(model, free), strict=False
        )
        export_seconds.append(time.process_time() - began)
    ported = {"port ÷ export": min(port_seconds[1:]) / min(export_seconds[1:])}
    if only_port:
        return ported
    flax = imported(made, folder / f"ported_{name}")
    sides: dict[str, tuple[Any, Any]] = {
        "port": (lambda w, a: flax.apply(w, **a), flax.init(jax.random.key(0), **arrays)),
        "by hand": (lambda w, a: by_hand.apply(w, **a), by_hand.init(jax.random.key(0), **arrays)),
    }
    if importlib.util.find_spec("torchax") is not None:
        import torchax

        held, in_jax = torchax.extract_jax(model)
        sides["torchax"] = (lambda w, a: _plain(in_jax(w, (), a)), held)
    steps, compiled = {}, dict.fromkeys(sides, float("inf"))
    for _ in range(3):
        for side, (function, weights) in sides.items():
            jax.clear_caches()
            began = time.perf_counter()
            step = jax.jit(lambda w, a, f=function: f(w, a)).lower(weights, arrays).compile()
            compiled[side] = min(compiled[side], time.perf_counter() - began)
            steps[side] = lambda step=step, weights=weights: step(weights, arrays)
    found = quickest(steps, rounds)
    row = {
        "step, ms": 1000 * found["port"],
        "step ÷ by hand": found["port"] / found["by hand"],
        **ported,
    }
    if "torchax" in found:
        row["step ÷ torchax"] = found["port"] / found["torchax"]
        row["compile ÷ torchax"] = compiled["port"] / compiled["torchax"]
    return row


def _given(model: Any, free: dict[str, Any]) -> Any:
    """torch.export wants a forward's `**kwargs` by its name."""
    import inspect

    kinds = inspect.signature(model.forward).parameters
    return {key: one for key, one in free.items() if key in kinds} | {
        name: {key: one for key, one in free.items() if key not in kinds}
        for name, kind in kinds.items()
        if kind.kind is kind.VAR_KEYWORD and any(key not in kinds for key in free)
    }


def _plain(value: Any) -> Any:
    """What jit takes of transformers' results."""
    return [one for one in jax.tree.leaves(tuple(value.to_tuple())) if hasattr(one, "shape")]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only-port", action="store_true", help="port ÷ export alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    missed = []
    columns = ["step, ms", *GOALS]
    print(f"| model | {' | '.join(columns)} |")
    print(f"|---|{'--:|' * len(columns)}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.models or MODELS:
            row = measured(name, given.rounds, Path(scratch), given.only_port)
            print(
                f"| {name} | {' | '.join(f'{row[c]:.2f}' if c in row else '' for c in columns)} |",
                flush=True,
            )
            append(
                "port-speed", {"model": name} | {c: f"{row[c]:.2f}" for c in columns if c in row}
            )
            missed += [f"{name}: {c}" for c, goal in GOALS.items() if row.get(c, 0) > goal]
    print(f"jax {jax.__version__}, torch {torch.__version__}, numpy {np.__version__}")
    if missed:
        print(f"missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
