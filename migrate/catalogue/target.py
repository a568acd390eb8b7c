"""Packages that drive the TPU from PyTorch: the targets of a rewrite and of a check."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def in_words(message: str, target: Target, quoted: Iterable[str] = ()) -> str:
    """Return a message about torch_xla in the words of `target`.

    Args:
        message: the message.
        target: the package that drives the TPU.
        quoted: code of the user that stays as it is where the message quotes it. Asked only if words change.
    """
    if target == XLA or _reworded(message) == message:
        return message
    kept = sorted({text for text in quoted if text and text in message}, key=len, reverse=True)
    if not kept:
        return _reworded(message)
    parts = re.split(f"({'|'.join(map(re.escape, kept))})", message)
    return "".join(part if index % 2 else _reworded(part) for index, part in enumerate(parts))


def _reworded(message: str) -> str:
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message
