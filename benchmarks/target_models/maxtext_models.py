"""MaxText's own Llama and Mixtral, small: run by an interpreter of an environment of its own (Python 3.12).

    git clone https://github.com/AI-Hypercomputer/maxtext
    python3.12 -m venv MT
    MT/bin/pip install jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 omegaconf pydantic optax orbax-checkpoint \
        aqtp qwix tokamax jaxtyping ml-collections safetensors pyyaml absl-py jinja2 pillow grain drjax \
        sympy cloud-accelerator-diagnostics pathwaysutils requests psutil tqdm transformers
    MT/bin/pip install --no-deps ./maxtext
    python benchmarks/target_pairs.py --maxtext MT/bin/python MaxText
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest import mock

# Tokenizers, which no model needs.
_AWAY = ("tiktoken", "tiktoken.load", "sentencepiece")
_SIZES = {
    "base_emb_dim": 16,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 8,
    "base_mlp_dim": 24,
    "base_moe_mlp_dim": 24,
    "base_num_decoder_layers": 2,
    "vocab_size": 32,
    "max_target_length": 16,
    "per_device_batch_size": 2,
}


def _nothing(name: str) -> None:
    module = mock.MagicMock(__spec__=importlib.util.spec_from_loader(name, None), __path__=[])
    sys.modules.setdefault(name, module)


@functools.cache
def _model(block: str, scanned: bool, **more: Any) -> Any:
    import jax

    for name in _AWAY:
        _nothing(name)
    import maxtext
    from maxtext.configs import pyconfig
    from maxtext.models import models
    from maxtext.utils import maxtext_utils

    config = pyconfig.initialize(
        ["", str(Path(maxtext.__file__).parent / "configs" / "base.yml")],
        run_name="fit",
        enable_checkpointing=False,
        skip_jax_distributed_system=True,
        decoder_block=block,
        mlp_activations=["silu", "linear"],
        logits_via_embedding=False,
        normalization_layer_epsilon=1e-5,
        enable_dropout=False,
        attention="dot_product",
        dtype="float32",
        weight_dtype="float32",
        scan_layers=scanned,
        **_SIZES,
        **more,
    )
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    return models.transformer_as_linen(config, mesh, None), mesh


def _start(model: Any, ids: Any) -> Any:
    import jax
    from flax import linen

    module, mesh = model
    with mesh:
        made = module.init(jax.random.key(0), ids, *_places(ids), enable_dropout=False)
    return linen.unbox(made)["params"]


def _places(ids: Any) -> tuple[Any, Any]:
    import jax.numpy as jnp

    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape), jnp.ones_like(ids)


def _run(model: Any, params: Any, ids: Any) -> Any:
    module, mesh = model
    with mesh:
        return module.apply({"params": params}, ids, *_places(ids), enable_dropout=False)


def llama_params(key: Any, input_ids: Any) -> Any:
    """Of MaxText's Llama, its blocks scanned."""
    del key
    return _start(_model("llama2", True), input_ids)


def llama(params: Any, input_ids: Any) -> Any:
    """MaxText's Llama."""
    return _run(_model("llama2", True), params, input_ids)


def llama_apart_params(key: Any, input_ids: Any) -> Any:
    """The same with its blocks apart."""
    del key
    return _start(_model("llama2", False), input_ids)


def llama_apart(params: Any, input_ids: Any) -> Any:
    """The same with its blocks apart."""
    return _run(_model("llama2", False), params, input_ids)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "sparse_matmul": False, "megablox": False}


def mixtral_params(key: Any, input_ids: Any) -> Any:
    """Of MaxText's Mixtral."""
    del key
    return _start(_model("mixtral", True, **_EXPERTS), input_ids)


def mixtral(params: Any, input_ids: Any) -> Any:
    """MaxText's Mixtral, every expert on every token."""
    return _run(_model("mixtral", True, **_EXPERTS), params, input_ids)
