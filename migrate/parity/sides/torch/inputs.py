"""Inputs that a torch model's config or first layer tells how to make."""

from __future__ import annotations

from collections.abc import Iterator
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

_SAY = "say what it takes: --inputs 'x=float32[2,3,32,32]', a file, or a function"
# One of this many is long: bugs of positions show there alone, and a shape more is a compilation more.
_LONG_EVERY = 8
_SHORT, _LONG, _ROWS = 64, 500, 2
_APPENDED = 32  # that greedy decoding may append
_SIDES = (32, 224, 28, 64, 96, 16)  # of images that plain convolution nets are usually made for


def suggest(module: nn.Module, shown: str, count: int, seed: int, folder: Path) -> InputSet:
    """See `Runner.suggest_inputs`."""
    random = np.random.default_rng(seed)
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        inputs = [_of_config(module, shown, config, random, number) for number in range(count)]
    else:
        name, shape, tokens = _of_first_layer(module, shown)
        inputs = [_plain(name, shape, tokens, random, number) for number in range(count)]
    return write_inputs(folder, [one for one, _ in inputs], tuple(text for _, text in inputs))


def _of_config(module: nn.Module, shown: str, config: Any, random: Generator, number: int) -> Made:
    """One input of a transformers model; a config of several models (text, vision) tells in its parts."""
    takes = {name for name, _ in torch_call.parameters(module)}
    made: dict[str, Array] = {}
    text = []
    if "pixel_values" in takes and (side := _find(config, "image_size", "vision_config")):
        height, width = side if isinstance(side, list | tuple) else (side, side)
        channels = _find(config, "num_channels", "vision_config") or 3
        made["pixel_values"], how = _real((_ROWS, channels, height, width), random, number)
        text.append(f"pixel_values float32 {[_ROWS, channels, height, width]}, {how}")
    if "input_features" in takes and (bins := getattr(config, "num_mel_bins", None)):
        frames = 2 * (getattr(config, "max_source_positions", None) or _LONG)
        made["input_features"], how = _real((_ROWS, bins, frames), random, number)
        text.append(f"input_features float32 {[_ROWS, bins, frames]}, {how}")
    if "input_ids" in takes and (not made or "vision_config" in config.to_dict()):
        _add_tokens(made, text, config, random, number, "", "attention_mask" in takes)
    if "decoder_input_ids" in takes and made:
        _add_tokens(made, text, config, random, number, "decoder_", False)
    if not made:
        raise InputsError(f"{shown}: its config does not describe the inputs", _SAY)
    return made, f"{number}: {'; '.join(text)}"


def _add_tokens(
    made: dict[str, Array],
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
    rows = len(next(iter(made.values()))) if made else rows
    pad = _find(config, "pad_token_id", "text_config")
    ids, how = _tokens((rows, length), vocabulary, pad, random, number)
    if prefix and isinstance(start := getattr(config, "decoder_start_token_id", None), int):
        ids[:, 0] = start
    text.append(f"{prefix}input_ids int64 {list(ids.shape)}, {how}")
    made[f"{prefix}input_ids"] = ids
    if masked:
        mask = np.ones_like(ids)
        if rows > 1:
            end = int(random.integers(length // 2, length))
            mask[-1, end:] = 0
            ids[-1, end:] = pad if isinstance(pad, int) else 0
            text.append(f"the last row padded after {end}")
        made["attention_mask"] = mask


def _room(positions: int | None) -> int:
    """How long a sequence may be: some tokens are appended to it, and RoBERTa counts from 2."""
    return _LONG if positions is None else max(1, positions - 2 - min(_APPENDED, positions // 4))


def _most_positions(config: Any, prefix: str) -> int | None:
    names = ["max_target_positions"] if prefix else []
    for name in (*names, "max_position_embeddings", "n_positions"):
        found = _find(config, name, "text_config")
        if isinstance(found, int) and found > 0:
            return found
    return None


def _find(config: Any, name: str, part: str) -> Any:
    found = getattr(config, name, None)
    return found if found is not None else getattr(getattr(config, part, None), name, None)


def _tokens(
    shape: tuple[int, ...], vocabulary: int, pad: Any, random: Generator, number: int
) -> tuple[Array, str]:
    """Tokens that are not the padding one, uniform or as frequent as in text."""
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


def _of_first_layer(module: nn.Module, shown: str) -> tuple[str, tuple[int, ...], int]:
    """The one required argument, its shape, and the number of tokens if it is of tokens.

    What the first layer with weights wants is tried on the CPU: the model takes it or not.
    """
    required = [name for name, needed in torch_call.parameters(module) if needed]
    if len(required) != 1:
        takes = ", ".join(required) or "nothing that must be given"
        raise InputsError(f"{shown}: input shapes are unknown (it takes {takes})", _SAY)
    settings = SideSettings()
    cpu = torch.device("cpu")
    model = torch_variant.variant(module, cpu, settings)
    for shape, tokens in _candidates(model):
        array = np.zeros(shape, np.int64 if tokens else np.float32)
        try:
            with torch.no_grad(), torch_variant.running(cpu, settings):
                given = torch_call.tensors({required[0]: array}, cpu, settings)
                torch_call.call(model, model, given, shown)
        except ParityError:
            continue
        return required[0], shape, tokens
    raise InputsError(f"{shown}: input shapes are unknown", _SAY)


def _candidates(model: nn.Module) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes (and for embeddings the number of tokens) by the first module that has weights of its own."""
    first = next(
        (one for one in model.modules() if any(True for _ in one.parameters(recurse=False))), None
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
