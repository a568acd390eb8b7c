"""A tiny Llama of transformers with seeded weights, and greedy decoding in a buffer of fixed length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROWS, PROMPT, LENGTH, WORDS = 4, 16, 48, 512


class Logits(torch.nn.Module):
    """Token ids → logits, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=WORDS,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=LENGTH,
            )
        ).eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.llama(ids, use_cache=False).logits


def prompts() -> torch.Tensor:
    """Rows of random tokens; what follows the prompt is still empty."""
    drawn = torch.randint(0, WORDS, (160, PROMPT), generator=torch.Generator().manual_seed(1))
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    # Of the 160 prompts 29 part within 32 tokens under one pass. Three of these four do, each by more than a
    # thousand units in the last place on both sides, so that every CPU shows the same tokens.
    ids[:, :PROMPT] = drawn[[112, 115, 129, 54]]
    return ids


@dataclass(frozen=True)
class Decoded:
    """Tokens [rows, steps], and by how much each won over the second."""

    tokens: torch.Tensor
    margins: torch.Tensor


def decode(model: Any, ids: torch.Tensor, device: str = "cpu") -> Decoded:
    """Append the most likely token until the buffer is full: one shape, one graph."""
    ids, margins = ids.clone(), []
    with torch.no_grad():
        for place in range(PROMPT, LENGTH):
            # All of them come back: on XLA each place that is cut out there would be a graph of its own.
            logits = model(ids.to(device)).cpu()[:, place - 1].float()
            best = logits.topk(2)
            ids[:, place] = best.indices[:, 0]
            margins.append(best.values[:, 0] - best.values[:, 1])
    return Decoded(ids[:, PROMPT:], torch.stack(margins, 1))


def first_differences(a: Decoded, b: Decoded) -> list[tuple[int, int]]:
    """Row and step of the first token in which the two part, of each row where they do."""
    found = []
    for row, apart in enumerate(a.tokens != b.tokens):
        if apart.any():
            found.append((row, int(apart.int().argmax())))
    return found
