"""Inputs of the models of transformers that are drawn by no shape alone: `--inputs batches.py:NAME`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Batch = dict[str, np.ndarray[Any, Any]]
COUNT = 3


def llama() -> Iterator[Batch]:
    """Tokens with positions, which the Flax models want to be told."""
    return _tokens(97)


def gemma() -> Iterator[Batch]:
    """As `llama`."""
    return _tokens(83)


def minilm() -> Iterator[Batch]:
    """Two sentences, one of them padded."""
    for number in range(COUNT):
        mask = np.ones((2, 24), np.int64)
        mask[1, 15 + number :] = 0
        ids = np.random.default_rng(number).integers(1000, 30522, (2, 24))
        yield {"input_ids": ids * mask, "attention_mask": mask}


def whisper() -> Iterator[Batch]:
    """A spectrogram and what was said so far."""
    for number in range(COUNT):
        generator = np.random.default_rng(number)
        yield {
            "input_features": generator.standard_normal((2, 8, 40)).astype(np.float32),
            "decoder_input_ids": generator.integers(0, 71, (2, 11)),
            "decoder_attention_mask": np.ones((2, 11), np.int64),
            "decoder_position_ids": np.tile(np.arange(11), (2, 1)),
        }


def _tokens(size: int) -> Iterator[Batch]:
    for number in range(COUNT):
        yield {
            "input_ids": np.random.default_rng(number).integers(0, size, (2, 33)),
            "attention_mask": np.ones((2, 33), np.int64),
            "position_ids": np.tile(np.arange(33), (2, 1)),
        }
