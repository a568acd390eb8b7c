"""Ports with `--attention`: proven on the CPU, and under the TPU's compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from benchmarks.zoo_models.port_package import imported
from converters.graph import port
from converters.graph.writing.repeated.repeats import Repeats
from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import on_tpu, program_of_jax
from migrate.port.pipeline import PortOptions, port_model
from migrate.progress import no_progress

KERNEL = 'custom_call_target="tpu_custom_call"'
SIZES = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "use_cache": False,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Function that makes the model of a port, with the named attention."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    module = LlamaModel(LlamaConfig(**SIZES)).eval()
    inputs = {"input_ids": torch.arange(32).reshape(2, 16)}
    written = port(module, inputs, repeats=Repeats(attention="auto"))
    folder = tmp_path_factory.mktemp("ports")

    def model(attention: str) -> Any:
        package = folder / f"llama_with_{attention}"
        return imported(written, package, {"attention": attention}, dtype=jnp.bfloat16)

    return model


NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


def test_a_port_for_the_kernel_of_a_tpu_is_proven_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    options = PortOptions(
        output=tmp_path / "ported",
        inputs=("x=float32[2,6,24]",),
        count=1,
        attention="splash",
        comparisons=frozenset({"float32"}),
    )
    done = port_model(f"{tmp_path / 'net.py'}:Net", options, "migrate port", no_progress)
    assert done.matches
    assert '    attention: str = "splash"\n' in (done.folder / "config.py").read_text()
    assert "`attention='splash'` is the default" in (done.folder / "README.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("attention", "forward", "gradients"), [("splash", 1, 3), ("auto", 1, 3), ("xla", 0, 0)]
)
def test_the_kernel_is_in_the_program(
    llama: Any, attention: str, forward: int, gradients: int
) -> None:
    pytest.importorskip("libtpu")
    model = llama(attention)
    tokens = jax.ShapeDtypeStruct((2, 200), jnp.int32)  # padded to the kernel's blocks
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)

    def loss(variables: Any, tokens: jax.Array, mask: jax.Array) -> jax.Array:
        outputs = model.apply(variables, tokens, attention_mask=mask)
        return jnp.square(outputs["last_hidden_state"].astype(jnp.float32)).mean()

    for function, kernels in ((loss, forward), (jax.grad(loss), gradients)):
        with on_tpu(1):
            program = program_of_jax(function, variables, tokens, tokens)
        compiled = compile_for_tpu(program, [{}])
        assert not compiled.undetermined
        assert compiled.texts[0].count(KERNEL) == kernels
