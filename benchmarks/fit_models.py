"""Models of the sizes that people train, in torch and Flax, for `benchmarks/fit_memory.py`."""

from __future__ import annotations

from typing import Any

from flax import linen


class Block(linen.Module):
    """Attention and two layers, normalized before."""

    width: int

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, tokens, width)."""
        x = x + linen.SelfAttention(num_heads=8)(linen.LayerNorm()(x))
        hidden = linen.gelu(linen.Dense(4 * self.width)(linen.LayerNorm()(x)))
        return x + linen.Dense(self.width)(hidden)


class LanguageModel(linen.Module):
    """Four blocks and GPT-2's vocabulary."""

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        """Of (batch, tokens)."""
        x = linen.Embed(50257, 512)(tokens)
        for _ in range(4):
            x = Block(512)(x)
        return linen.Dense(50257)(linen.LayerNorm()(x))


class Wide(linen.Module):
    """Three layers of a billion weights together."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 16384)."""
        for _ in range(3):
            x = linen.relu(linen.Dense(16384)(x))
        return linen.Dense(16)(x)


def gpt2() -> Any:
    """GPT-2 with four layers, its logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=512, n_head=8, use_cache=False))


def vit() -> Any:
    """A small ViT, 224 × 224."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
        )
    )


def resnet50() -> Any:
    """ResNet-50 as transformers has it."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000))
