"""Packages that drive the TPU from PyTorch: the targets of a rewrite and of a check."""

from __future__ import annotations

import re
from typing import Literal, get_args

Target = Literal["torch_xla", "torch_tpu"]
TARGETS: tuple[Target, ...] = get_args(Target)
XLA: Target = "torch_xla"
TPU: Target = "torch_tpu"
XLA_ONLY: frozenset[Target] = frozenset({XLA})
TPU_ONLY: frozenset[Target] = frozenset({TPU})
BOTH: frozenset[Target] = frozenset(TARGETS)
# The generator of torch_tpu's random numbers, for which torch.accelerator has no name yet.
GENERATOR = "torch.tpu.default_generators[0]"
# What is said of a construct that nobody has run on torch_tpu's group.
UNMEASURED = "is not known to work on the group of torch_tpu: try it first"

# Wording of messages that both targets share, and the wording for torch_tpu.
_WORDS = (
    (re.compile(r"'xla' process group"), "'tpu_dist' process group"),
    (re.compile(r"the backend on XLA is 'xla'"), "the backend on torch_tpu is 'tpu_dist'"),
    (re.compile(r"(?<=['\"])xla(?=['\"])"), "tpu"),
    (re.compile(r"\ban XLA device\b"), "the TPU"),
    (re.compile(r"\bon XLA\b"), "on torch_tpu"),
    (re.compile(r"\b(for|of|to|beside|is|but|than) XLA\b"), r"\1 the TPU"),
    (re.compile(r"\bXLA (has|keeps|orders|compiles|computes|makes|device)\b"), r"torch_tpu \1"),
    (re.compile(r"\bExpected XLA tensor\b"), "Expected a TPU tensor"),
)


def in_words(message: str, target: Target) -> str:
    """Return a message about torch_xla in the words of `target`."""
    if target == XLA:
        return message
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message
