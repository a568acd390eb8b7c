"""Inputs of a torch model, derived from its config or its first layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.drawn import DISTRIBUTIONS
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch.call import Array

Generator = np.random.Generator
Made = tuple[dict[str, Array], str]

# One in this many inputs is long: errors of positions only show there, and each shape is compiled anew.
_LONG_EVERY = 8
_SHORT, _LONG, _ROWS = 64, 500, 2
_APPENDED = 32  # tokens that greedy decoding may append
_SIDES = (32, 224, 28, 64, 96, 16)  # sizes of images that plain convolution nets usually expect


def suggest(module: nn.Module, shown: str, count: int, seed: int, folder: Path) -> InputSet:
    """See `Runner.suggest_inputs`."""
    random = np.random.default_rng(seed)
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        inputs = [_of_config(module, shown, config, random, number) for number in range(count)]
    else:
        name, shape, tokens = _of_first_layer(module, shown)
        inputs = [_plain(name, shape, tokens, random, number) for number in range(count)]
    return write_inputs(
        folder, [arguments for arguments, _ in inputs], tuple(text for _, text in inputs)
    )


def _of_config(module: nn.Module, shown: str, config: Any, random: Generator, number: int) -> Made:
    """Create an input of a transformers model; a config of several models (text, vision) has parts."""
    takes = {name for name, _ in torch_call.parameters(module)}
    arguments: dict[str, Array] = {}
    text = []
    if "pixel_values" in takes and (side := _find(config, "image_size", "vision_config")):
        height, width = side if isinstance(side, list | tuple) else (side, side)
        channels = _find(config, "num_channels", "vision_config") or 3
        arguments["pixel_values"], how = _real((_ROWS, channels, height, width), random, number)
        text.append(f"pixel_values float32 {[_ROWS, channels, height, width]}, {how}")
    if "input_features" in takes and (bins := getattr(config, "num_mel_bins", None)):
        frames = 2 * (getattr(config, "max_source_positions", None) or _LONG)
        arguments["input_features"], how = _real((_ROWS, bins, frames), random, number)
        text.append(f"input_features float32 {[_ROWS, bins, frames]}, {how}")
    if "input_ids" in takes and (not arguments or "vision_config" in config.to_dict()):
        _add_tokens(arguments, text, config, random, number, "", "attention_mask" in takes)
    if "decoder_input_ids" in takes and arguments:
        _add_tokens(arguments, text, config, random, number, "decoder_", False)
    if not arguments:
        raise InputsError(f"{shown}: its config does not describe the inputs", _remedy(()))
    return arguments, f"{number}: {'; '.join(text)}"


def _add_tokens(
    arguments: dict[str, Array],
    text: list[str],
    config: Any,
    random: Generator,
    number: int,
    prefix: str,
    masked: bool,
) -> None:
    vocabulary = _find(config, "vocab_size", "text_config")
    if not isinstance(vocabulary, int):
        return
    most = _room(_most_positions(config, prefix))
    long = number % _LONG_EVERY == _LONG_EVERY - 1 and not prefix
    rows, length = (1, min(_LONG, most)) if long else (_ROWS, min(_SHORT, most))
    rows = len(next(iter(arguments.values()))) if arguments else rows
    pad = _find(config, "pad_token_id", "text_config")
    ids, how = _tokens((rows, length), vocabulary, pad, random, number)
    if prefix and isinstance(start := getattr(config, "decoder_start_token_id", None), int):
        ids[:, 0] = start
    text.append(f"{prefix}input_ids int64 {list(ids.shape)}, {how}")
    arguments[f"{prefix}input_ids"] = ids
    if masked:
        mask = np.ones_like(ids)
        if rows > 1:
            end = int(random.integers(length // 2, length))
            mask[-1, end:] = 0
            ids[-1, end:] = pad if isinstance(pad, int) else 0
            text.append(f"the last row padded after {end}")
        arguments["attention_mask"] = mask


def _room(positions: int | None) -> int:
    """Maximum length of a sequence: some tokens are appended to it, and RoBERTa counts from 2."""
    return _LONG if positions is None else max(1, positions - 2 - min(_APPENDED, positions // 4))


def _most_positions(config: Any, prefix: str) -> int | None:
    names = ["max_target_positions"] if prefix else []
    for name in (*names, "max_position_embeddings", "n_positions"):
        positions = _find(config, name, "text_config")
        if isinstance(positions, int) and positions > 0:
            return positions
    return None


def _find(config: Any, name: str, part: str) -> Any:
    setting = getattr(config, name, None)
    return setting if setting is not None else getattr(getattr(config, part, None), name, None)


def _tokens(
    shape: tuple[int, ...], vocabulary: int, pad: Any, random: Generator, number: int
) -> tuple[Array, str]:
    """Draw tokens other than padding, uniform or as frequent as in text."""
    how = ("uniform", "as frequent as in text", "few different ones")[number % 3]
    if number % 3 == 0:
        ids = random.integers(0, vocabulary, shape)
    elif number % 3 == 1:
        ids = np.minimum(random.zipf(1.2, shape), vocabulary) - 1
    else:
        ids = random.choice(random.integers(0, vocabulary, 8), shape)
    if isinstance(pad, int) and 0 <= pad < vocabulary:
        ids[ids == pad] = (pad + 1) % vocabulary
    return ids.astype(np.int64), f"{how} of {vocabulary}"


def _real(shape: tuple[int, ...], random: Generator, number: int) -> tuple[Array, str]:
    how, make = DISTRIBUTIONS[number % len(DISTRIBUTIONS)]
    return make(random, shape).astype(np.float32), how


def _plain(name: str, shape: tuple[int, ...], tokens: int, random: Generator, number: int) -> Made:
    if tokens:
        array, how = _tokens(shape, tokens, None, random, number)
    else:
        array, how = _real(shape, random, number)
    return {name: array}, f"{number}: {name} {array.dtype} {list(shape)}, {how}"


def _remedy(names: Iterable[str]) -> str:
    """Return what to do about unknown inputs, for a model with arguments of these names."""
    first, *others = [*names] or ["x"]
    more = "".join(f" --inputs '{name}=…'" for name in others)
    return f"pass them: --inputs '{first}=float32[2,3,32,32]'{more}, a file, or a function"


def _of_first_layer(module: nn.Module, shown: str) -> tuple[str, tuple[int, ...], int]:
    """Name of the only required argument, its shape, and the number of tokens if it holds tokens.

    The shapes that the first layer with weights accepts are tried on the CPU.
    """
    required = [name for name, needed in torch_call.parameters(module) if needed]
    if len(required) != 1:
        takes = ", ".join(required) or "nothing that must be given"
        raise InputsError(
            f"{shown}: input shapes are unknown (it takes {takes})", _remedy(required)
        )
    settings = SideSettings()
    cpu = torch.device("cpu")
    model = torch_variant.variant(module, cpu, settings)
    for shape, tokens in _candidates(model):
        array = np.zeros(shape, np.int64 if tokens else np.float32)
        try:
            with torch.no_grad(), torch_variant.running(cpu, settings):
                tensors = torch_call.tensors({required[0]: array}, cpu, settings)
                torch_call.call(model, model, tensors, shown)
        except ParityError:
            continue
        return required[0], shape, tokens
    raise InputsError(f"{shown}: input shapes are unknown", _remedy(required))


def _candidates(model: nn.Module) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes (and for embeddings the number of tokens) by the first module with weights of its own."""
    first = next(
        (
            module_with_weights
            for module_with_weights in model.modules()
            if any(True for _ in module_with_weights.parameters(recurse=False))
        ),
        None,
    )
    match first:
        case nn.Embedding() | nn.EmbeddingBag():
            yield (4, 32), first.num_embeddings
            yield (32,), first.num_embeddings
        case nn.Linear():
            for side in _SIDES:  # a model that flattens images
                yield from (
                    ((2, c, side, side), 0) for c in (1, 3) if c * side**2 == first.in_features
                )
            yield (8, first.in_features), 0
            yield (2, 16, first.in_features), 0
        case nn.Conv1d():
            yield from (((2, first.in_channels, length), 0) for length in (64, 256, 1024))
        case nn.Conv2d() | nn.BatchNorm2d():
            channels: int = (
                first.in_channels if isinstance(first, nn.Conv2d) else first.num_features
            )
            yield from (((2, channels, side, side), 0) for side in _SIDES)
        case nn.Conv3d():
            yield from (((2, first.in_channels, side, side, side), 0) for side in (16, 32))
        case nn.RNNBase():
            rows, length = (4, 32) if first.batch_first else (32, 4)
            yield (rows, length, first.input_size), 0
        case nn.LayerNorm():
            yield (8, *first.normalized_shape), 0
            yield (2, 16, *first.normalized_shape), 0
        case nn.MultiheadAttention():
            yield (4, 32, first.embed_dim), 0
