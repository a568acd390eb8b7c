"""Memory and operations of ports under the TPU's compiler, beside Flax written by hand.

    python benchmarks/port_tpu.py [llama|vit|vit_two_passes|resnet50…] [--chips v5e,v6e]
                                  [--steps inference,training]

Each model is ported, and compiled ahead of time for one chip, as is the same model by hand
(`flax_by_hand.py`). Inference has weights in bfloat16. A training step has weights in float32 and computes in
bfloat16: the mean square of the outputs, gradients, AdamW; weights, statistics and state are donated. HBM is
what `migrate fit` reports: arguments, outputs and temporaries, donated memory once. Operations are those of
the compiler's cost analysis. Exit code 1 if a goal is missed: HBM 1.05 × and operations 1.02 × of the
hand-written. --keep FOLDER writes the optimized programs, to see what differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not for whoever imports it: the tests ask a hub of their own
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import optax
import torch
from history import append

from benchmarks import flax_by_hand
from benchmarks.zoo_models.port_package import imported
from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import CompilerProgram, on_tpu, program_of_jax

GOALS = {"HBM ÷ by hand": 1.05, "operations ÷ by hand": 1.02}
TOPOLOGIES = {"v5e": "v5e:1x1", "v6e": "v6e:1x1"}
STEPS = ("inference", "training")
TIMEOUT = 3600.0  # seconds for each compilation


@dataclass(frozen=True)
class Side:
    """A Flax model whose step is compiled.

    Attributes:
        model: makes the model with these dtypes.
        output: takes the compared output from what the model returns.
        training: arguments of its call that choose the training mode.
    """

    model: Callable[..., Any]
    output: Callable[[Any], jax.Array]
    training: Mapping[str, bool]


@dataclass(frozen=True)
class Case:
    """A model, with its inputs.

    Attributes:
        name: name in the table.
        original: makes the torch model.
        example: what it is recorded with.
        inputs: shapes of the step.
        by_hand: the hand-written model.
        output: name of the port's output that is compared.
    """

    name: str
    original: Callable[[], Any]
    example: Callable[[], dict[str, torch.Tensor]]
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    by_hand: Side
    output: str


def llama() -> Any:
    """Two layers with the widths of Llama 3.2 1B, without the head."""
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            vocab_size=1024,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=2,
            num_attention_heads=32,
            num_key_value_heads=8,
            use_cache=False,
        )
    )


def vit() -> Any:
    """ViT-B/16 with four layers."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_hidden_layers=4, num_labels=1000))


def resnet50() -> Any:
    """ResNet-50 with its head."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def _tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(32).reshape(2, 16)}


def _images() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(2, 3, 224, 224, generator=generator)}


IMAGES = {"pixel_values": jax.ShapeDtypeStruct((32, 3, 224, 224), jnp.bfloat16)}
CASES = {
    "llama": Case(
        "Llama 1B, 2 layers, 4 × 1,024 tokens",
        llama,
        _tokens,
        {"input_ids": jax.ShapeDtypeStruct((4, 1024), jnp.int32)},
        Side(
            lambda **dtypes: flax_by_hand.Llama(1024, 2048, 8192, 2, 32, 8, logits=False, **dtypes),
            lambda outputs: outputs,
            {},
        ),
        "last_hidden_state",
    ),
    "vit": Case(
        "ViT-B/16, 4 layers, 32 images",
        vit,
        _images,
        IMAGES,
        Side(
            lambda **dtypes: flax_by_hand.ViT(768, 3072, 4, 12, 16, 1000, **dtypes),
            lambda outputs: outputs,
            {},
        ),
        "logits",
    ),
    "vit_two_passes": Case(
        "ViT-B/16, 4 layers, 32 images, by hand with torch's variance",
        vit,
        _images,
        IMAGES,
        Side(
            lambda **dtypes: flax_by_hand.ViT(
                768, 3072, 4, 12, 16, 1000, fast_variance=False, **dtypes
            ),
            lambda outputs: outputs,
            {},
        ),
        "logits",
    ),
    "resnet50": Case(
        "ResNet-50, 32 images",
        resnet50,
        _images,
        IMAGES,
        Side(
            lambda **dtypes: flax_by_hand.ResNet50(1000, **dtypes),
            lambda outputs: outputs,
            {"train": True},
        ),
        "logits",
    ),
}


def ported(case: Case, folder: Path, attention: str = "") -> Side:
    """The port of a case, with a default of `--attention` or without that option."""
    from converters.graph import port
    from converters.graph.writing.repeated.repeats import Repeats

    torch.manual_seed(0)
    written = port(case.original().eval(), case.example(), repeats=Repeats(attention=attention))

    def model(**dtypes: Any) -> Any:
        parent = Path(tempfile.mkdtemp(dir=folder))
        package = parent / f"ported_{case.original.__name__}_{parent.name}"
        return imported(written, package, **dtypes)

    trains = "deterministic" in written.modeling
    training = {"deterministic": False} if trains else {}
    return Side(model, lambda outputs: outputs[case.output], training)


def program(side: Side, case: Case, step: str) -> CompilerProgram:
    """The step of a model as a program for the compiler of a single chip."""
    with on_tpu(1):
        return _program(side, case, step)


def _program(side: Side, case: Case, step: str) -> CompilerProgram:
    if step == "inference":
        model = side.model(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
        variables = jax.eval_shape(lambda: model.init(jax.random.key(0), **_zeros(case)))

        def forward(variables: Any, inputs: Any) -> jax.Array:
            return side.output(model.apply(variables, **inputs))

        return program_of_jax(forward, variables, dict(case.inputs))
    model = side.model(dtype=jnp.bfloat16)
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), **_zeros(case)))
    params = variables["params"]
    kept = {name: values for name, values in variables.items() if name != "params"}
    optimizer = optax.adamw(1e-3)

    def loss(params: Any, kept: Any, inputs: Any) -> tuple[jax.Array, Any]:
        outputs, updates = model.apply(
            {"params": params, **kept}, **inputs, **side.training, mutable=list(kept)
        )
        return jnp.square(side.output(outputs).astype(jnp.float32)).mean(), updates

    def train(params: Any, kept: Any, state: Any, inputs: Any) -> Any:
        (value, kept), gradients = jax.value_and_grad(loss, has_aux=True)(params, kept, inputs)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), kept, state, value

    state = jax.eval_shape(optimizer.init, params)
    donating = jax.jit(train, donate_argnums=(0, 1, 2))
    return program_of_jax(donating, params, kept, state, dict(case.inputs))


def _zeros(case: Case) -> dict[str, jax.Array]:
    return {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in case.inputs.items()}


def main() -> int:
    """Compile, print and append to the history."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"{', '.join(CASES)}; default: all"
    )
    parser.add_argument("--chips", default=",".join(TOPOLOGIES))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--keep", type=Path, help="Folder for the optimized programs.")
    options = parser.parse_args()
    chips, steps = options.chips.split(","), options.steps.split(",")
    for words, known in ((options.models, CASES), (chips, TOPOLOGIES), (steps, STEPS)):
        if unknown := set(words) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: unknown; known are {', '.join(known)}")
    warnings.filterwarnings("ignore")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or CASES:
            case = CASES[name]
            sides = {"port": ported(case, Path(folder)), "by hand": case.by_hand}
            for step in steps:
                programs = {side: program(each, case, step) for side, each in sides.items()}
                for chip in chips:
                    row = compared(f"{case.name}: {step}, {chip}", programs, chip, options.keep)
                    print(", ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
                    append("port-tpu", row)
                    missed += [
                        f"{row['program']}: {column}"
                        for column, goal in GOALS.items()
                        if row[column] > goal
                    ]
    if missed:
        print("missed:", *missed, sep="\n  ")
    return int(bool(missed))


def compared(
    name: str, programs: Mapping[str, Any], chip: str, keep: Path | None
) -> dict[str, Any]:
    """The figures of both sides for a chip."""
    stats = {}
    for side, each in programs.items():
        compiled = compile_for_tpu(each, [{}], topology=TOPOLOGIES[chip], timeout=TIMEOUT)
        if compiled.undetermined:
            raise SystemExit(f"{name}, {side}: {compiled.undetermined}")
        stats[side] = compiled.stats[0]
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            Path(keep, f"{name}, {side}.hlo".replace("/", "-")).write_text(compiled.texts[0])
    port, by_hand = stats["port"], stats["by hand"]
    return {
        "program": name,
        "HBM, MB": round(port.reserved / 1e6, 1),
        "HBM ÷ by hand": round(port.reserved / by_hand.reserved, 3),
        "temporaries, MB": round(port.temporaries / 1e6, 1),
        "temporaries ÷ by hand": round(port.temporaries / max(by_hand.temporaries, 1), 3),
        "operations, billions": round(port.flops / 1e9, 2),
        "operations ÷ by hand": round(port.flops / by_hand.flops, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
