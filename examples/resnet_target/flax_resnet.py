"""A ResNet as people write one in flax.linen: its modules number themselves, the shortcut is called first."""

from typing import Any

from flax import linen as nn


class ConvNorm(nn.Module):
    features: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Any) -> Any:
        edge = self.size // 2
        x = nn.Conv(
            self.features,
            (self.size, self.size),
            (self.stride, self.stride),
            padding=[(edge, edge), (edge, edge)],
            use_bias=False,
        )(x)
        return nn.BatchNorm(use_running_average=True, momentum=0.9)(x)


class Block(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        shortcut = x
        if self.stride > 1 or x.shape[-1] != self.features:
            shortcut = ConvNorm(self.features, 1, self.stride)(x)
        x = nn.relu(ConvNorm(self.features, 3, self.stride)(x))
        return nn.relu(shortcut + ConvNorm(self.features, 3)(x))


class ResNet(nn.Module):
    width: int = 8
    classes: int = 10

    @nn.compact
    def __call__(self, image: Any) -> Any:
        x = nn.relu(ConvNorm(self.width, 7, 2)(image))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=[(1, 1), (1, 1)])
        for stage in range(4):
            x = Block(self.width * 2**stage, 2 if stage else 1)(x)
            x = Block(self.width * 2**stage, 1)(x)
        return nn.Dense(self.classes)(x.mean((1, 2)))
