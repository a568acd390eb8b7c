"""The same classifier in flax.linen: the same attribute names, so the weights fit as they are."""

import flax.linen as nn
import jax


class MLP(nn.Module):
    hidden: int = 256
    classes: int = 10

    def setup(self) -> None:
        self.fc1 = nn.Dense(self.hidden)
        self.fc2 = nn.Dense(self.hidden // 2)
        self.fc3 = nn.Dense(self.classes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(batch, 784) pixels → (batch, 10) logits."""
        x = nn.relu(self.fc1(x))
        x = nn.relu(self.fc2(x))
        return self.fc3(x)
