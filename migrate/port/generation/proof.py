"""Proof of a cached forward: its logits at each position equal the original's without a cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.port.child import answer_of
from migrate.port.generation.results import CachedCase

if TYPE_CHECKING:
    import torch

# Rows, tokens of the prompts, and steps after them. The first prompts are padded.
ROWS, PROMPT, STEPS = 3, 5, 8
PADDED = (2, 0, 1)
_SOURCE = 6
NAME = "cached logits: prefill and 8 steps, padding on the left"


def compare_cached(
    model: torch.nn.Module,
    example: Mapping[str, torch.Tensor],
    port: Any,
    folder: Path,
    params: Path | None,
    work: Path,
    timeout: float,
) -> CachedCase:
    """Compare the port's cached forward with the original.

    Args:
        model: the original in float32, in evaluation mode.
        example: an input of the recording.
        port: result of the compiler.
        folder: folder of the port.
        params: weights of the port; None: it has none.
        work: folder for intermediate files.
        timeout: seconds for the process of the port.
    """
    recorded = port.cache.recorded
    arrays, valid = _arrays(model, example, recorded)
    described = f"{recorded.tokens} int32[{ROWS},{PROMPT} + {STEPS}]"
    reference = _original(model, arrays, recorded)
    work.mkdir()
    np.savez(work / "inputs.npz", **arrays)
    answer = _answer(port, folder, params, work, timeout)
    if "error" in answer:
        return CachedCase(NAME, described, error=answer["error"])
    worst, position = worst_position(reference, np.load(work / "logits.npy"), valid)
    return CachedCase(NAME, described, worst, position)


def worst_position(wanted: Any, logits: Any, valid: Any) -> tuple[float, int]:
    """Return the relative L2 of the worst position, and the position; the first NaN is the worst.

    Where all the original's logits are zero, the distance is absolute.

    Args:
        wanted: the original's logits: (rows, positions, vocabulary).
        logits: the port's.
        valid: 1 for a token, 0 for padding: (rows, positions).
    """
    worst, position = 0.0, 0
    for at in range(wanted.shape[1]):
        rows = valid[:, at] > 0
        truth = wanted[rows, at].astype(np.float64)
        size = float(np.linalg.norm(truth))
        distance = float(np.linalg.norm(truth - logits[rows, at])) / (size or 1.0)
        if np.isnan(distance):
            return distance, at
        if distance > worst:
            worst, position = distance, at
    return worst, position


def _arrays(
    model: torch.nn.Module, example: Mapping[str, torch.Tensor], recorded: Any
) -> tuple[dict[str, Any], Any]:
    """Inputs by name, and the mask: 1 for a token, 0 for padding."""
    random = np.random.default_rng(0)
    text: Any = model.config
    vocabulary = int(text.get_text_config(decoder=True).vocab_size)
    shape = (ROWS, PROMPT + STEPS)
    arrays = {"tokens": random.integers(0, vocabulary, shape).astype(np.int32)}
    mask = np.ones(shape, np.int32)
    padded = bool(recorded.attention_mask) and bool(recorded.position_ids or not recorded.grows)
    for row, count in enumerate(PADDED if padded or not recorded.encoder else ()):
        mask[row, :count] = 0
    arrays["mask"] = mask
    for name in recorded.encoder:
        tensor = example[name]
        if tensor.is_floating_point():
            arrays[f"encoder.{name}"] = random.standard_normal((ROWS, *tensor.shape[1:])).astype(
                np.float32
            )
        else:
            source = random.integers(0, vocabulary, (ROWS, _SOURCE)).astype(np.int32)
            arrays[f"encoder.{name}"] = source
            arrays["encoder_mask"] = np.ones(source.shape, np.int32)
            arrays["encoder_mask"][1, -2:] = 0
    return arrays, mask


def _original(model: torch.nn.Module, arrays: Mapping[str, Any], recorded: Any) -> Any:
    """The original's logits without a cache."""
    import inspect

    import torch

    takes = inspect.signature(model.forward).parameters
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inputs = {recorded.tokens: tensors["tokens"].long()}
    prefix = "decoder_" if recorded.encoder else ""
    mask = tensors["mask"].long()
    if f"{prefix}attention_mask" in takes:
        inputs[f"{prefix}attention_mask"] = mask
    if recorded.position_ids:
        inputs[recorded.position_ids] = (mask.cumsum(1) - 1).clamp(min=0)
    for name in recorded.encoder:
        tensor = tensors[f"encoder.{name}"]
        inputs[name] = tensor if tensor.is_floating_point() else tensor.long()
    if recorded.encoder_mask:
        inputs[recorded.encoder_mask] = tensors["encoder_mask"].long()
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits.float().numpy()


def _answer(
    port: Any, folder: Path, params: Path | None, work: Path, timeout: float
) -> dict[str, Any]:
    recorded = port.cache.recorded
    request = {
        "folder": str(folder),
        "params": str(params) if params else "",
        "prompt": PROMPT,
        "grows": recorded.grows,
        "encoder": [*recorded.encoder],
        "encoder_mask": recorded.encoder_mask,
        "masks": bool(recorded.attention_mask),
        "positions": bool(recorded.position_ids),
        "work": str(work),
    }
    answer: dict[str, Any] = answer_of("migrate.port.generation.port_side", request, work, timeout)
    return answer
