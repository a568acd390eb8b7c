"""A classifier of 28x28 images in PyTorch: three linear layers with ReLU between them."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, inputs: int = 784, hidden: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden // 2)
        self.fc3 = nn.Linear(hidden // 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 784) pixels → (batch, 10) logits."""
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)
