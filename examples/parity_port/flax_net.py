"""Its port, with three mistakes that are easily made, and without them."""

import jax.numpy as jnp
from flax import linen as nn


class Block(nn.Module):
    width: int
    right: bool

    @nn.compact
    def __call__(self, x):
        # Mistake: Flax's LayerNorm has an epsilon of 1e-6 by default, torch's 1e-5.
        how = {"epsilon": 1e-5, "use_fast_variance": False} if self.right else {}
        y = nn.LayerNorm(name="norm", **how)(x)
        y = nn.Dense(4 * self.width, name="up")(y)
        # Mistake: jax's gelu has the tanh form by default, torch's the exact one.
        y = nn.gelu(y, approximate=not self.right)
        return x + nn.Dense(self.width, name="down")(y)


class Net(nn.Module):
    right: bool = False

    def setup(self):
        # Mistake: SAME with a stride of 2 pads at the end only.
        padding = ((1, 1), (1, 1)) if self.right else "SAME"
        self.stem = nn.Conv(16, (3, 3), strides=2, padding=padding)
        self.blocks = [Block(16, self.right), Block(16, self.right)]
        self.head = nn.Dense(10)

    def __call__(self, x):
        x = self.stem(x)
        x = jnp.reshape(x, (x.shape[0], -1, x.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def corrected():
    return Net(right=True)
