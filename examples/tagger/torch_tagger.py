"""A tagger of words in PyTorch: an embedding, a bidirectional LSTM of two layers, a tag for each word."""

import torch
from torch import nn


class Tagger(nn.Module):
    """Give each word of a sentence its tag."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(
            embedding, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1
        )
        self.norm = nn.LayerNorm(2 * hidden)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, words) of the vocabulary → (batch, words, tags)."""
        states, _ = self.lstm(self.embed(ids))
        # The last state of a direction is not needed: every word has one.
        return self.out(torch.relu(self.norm(states)))
