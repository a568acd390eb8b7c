"""Tiny models that generate tokens, with weights whose greedy tokens vary, and their ports."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]
VOCABULARY = 96
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
}


# Class of the configuration, class of the model, and sizes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", _SIZES),
    "Gemma 3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **_SIZES,
            "num_hidden_layers": 7,
            "head_dim": 10,
            "sliding_window": 6,
            "query_pre_attn_scalar": 10,
        },
    ),
    "Qwen 3": ("Qwen3Config", "Qwen3ForCausalLM", {**_SIZES, "head_dim": 10}),
    "GPT-2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "n_inner": 80,
        },
    ),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_SIZES, "num_local_experts": 5}),
    "Mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 48,
            "state_size": 6,
            "num_hidden_layers": 3,
            "conv_kernel": 4,
            "time_step_rank": 5,
        },
    ),
    "Whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 48,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 80,
            "decoder_ffn_dim": 72,
            "max_source_positions": 30,
            "max_target_positions": 128,
            "num_mel_bins": 10,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
    ),
    "T5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 48,
            "d_kv": 10,
            "d_ff": 80,
            "num_layers": 3,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
        },
    ),
}


def built(name: str) -> Any:
    """The model, with weights of one spread in all layers: no token wins everywhere."""
    import transformers

    config, model_class, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config)(**sizes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(drawn * 1.2 / parameter.shape[-1] ** 0.5)
            elif "bias" in path:
                parameter.copy_(drawn * 0.1)
    model.generation_config.eos_token_id = None
    return model


def recorded_inputs(name: str) -> Inputs:
    """Inputs to record the model with."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    if name == "T5":
        source = torch.randint(3, VOCABULARY, (2, 9), generator=generator)
        return {"input_ids": source, "decoder_input_ids": tokens}
    if name == "Whisper":
        features = torch.randn(2, 10, 60, generator=generator)
        return {"input_features": features, "decoder_input_ids": tokens}
    return {"input_ids": tokens}


def ported(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """The model, its port as a package in the folder, and what the compiler gave."""
    from converters.graph import port
    from migrate.port.generation.original import ends_of
    from migrate.port.generation.text import generate_text
    from migrate.port.texts import package_text
    from migrate.port.weights import write_weights

    model, inputs = built(name), recorded_inputs(name)
    result = port(model, inputs, cache=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        weights = write_weights(model, "port", result.constants, None, folder, Path(work))
    shapes = {
        key: (tuple(tensor.shape), str(tensor.numpy().dtype).replace("64", "32"))
        for key, tensor in inputs.items()
    }
    names = (result.model_class, result.config_class)
    ends, _ = ends_of(model, bool(result.cache.recorded.encoder))
    sources = {
        "modeling.py": result.modeling,
        "config.py": result.config,
        "generate.py": generate_text(*names, result.cache, ends),
        "__init__.py": package_text(*names, name, shapes, frozen=weights.frozen),
    }
    for file, text in sources.items():
        (folder / file).write_text(text)
    return model, imported(folder), result


def imported(folder: Path) -> Any:
    """The package in a folder."""
    name = f"generating_{folder.name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    importlib.import_module(f"{name}.generate")
    return package


def chi_square(
    model: Any,
    package: Any,
    prompt: Any,
    *,
    count: int = 5000,
    temperature: float = 0.8,
    own_temperature: float | None = None,
) -> tuple[float, float, int]:
    """Draws of the next token by a port, against torch's probabilities.

    Args:
        model: the original.
        package: its port.
        prompt: a prompt, of (1, length).
        count: number of draws.
        temperature: that of both.
        own_temperature: that of the port, if it is another one.

    Returns:
        Chi-square, its 99.9th percentile, and the degrees of freedom.
    """
    import jax
    import numpy as np

    with torch.no_grad():
        logits = model(torch.from_numpy(prompt)).logits[0, -1] / temperature
    probabilities = torch.softmax(logits, -1).numpy()
    drawn = package.generate.generate(
        package.build(),
        package.load_params(),
        np.repeat(prompt, count, axis=0),
        max_new_tokens=1,
        temperature=own_temperature or temperature,
        key=jax.random.key(1),
    )
    observed = np.bincount(np.asarray(drawn)[:, 0], minlength=len(probabilities))
    likely = probabilities * count >= 5
    wanted = np.append(probabilities[likely], probabilities[~likely].sum()) * count
    observed = np.append(observed[likely], observed[~likely].sum())
    degrees = len(wanted) - 1
    # By Wilson and Hilferty.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    return float(((observed - wanted) ** 2 / wanted).sum()), float(limit), degrees


def both(
    name: str, model: Any, package: Any, length: int, new: int, seed: int = 5
) -> tuple[Any, Any]:
    """Greedy tokens of the original and of the port, for prompts with padding on the left."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (3, length), generator=generator)
    mask = torch.ones_like(tokens)
    more: dict[str, Any] = {"max_new_tokens": new, "do_sample": False}
    if name == "T5":
        mask[1, -2:] = 0
        start = torch.zeros((3, 1), dtype=torch.int64)
        wanted = model.generate(
            tokens, attention_mask=mask, decoder_input_ids=start, pad_token_id=0, **more
        )[:, 1:]
        inputs = [tokens, mask]
    elif name == "Whisper":
        from transformers import GenerationMixin

        features = torch.randn(3, 10, 60, generator=generator)
        # Whisper's own `generate` adds the tokens of language, task and time before this one.
        wanted = GenerationMixin.generate(model, features, decoder_input_ids=tokens, **more)
        wanted = wanted[:, length:]
        inputs = [features, tokens]
    else:
        mask[0, :2] = 0
        mask[2, :1] = 0
        tokens = tokens * mask
        wanted = model.generate(tokens, attention_mask=mask, pad_token_id=0, **more)[:, length:]
        inputs = [tokens, mask]
    generated = package.generate.generate(
        package.build(),
        package.load_params(),
        *(tensor.numpy() for tensor in inputs),
        max_new_tokens=new,
    )
    return wanted.numpy(), generated
