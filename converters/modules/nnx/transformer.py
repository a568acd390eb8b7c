"""`torch.nn.Transformer` and its parts as nnx modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx
from jax import Array

from converters.modules.nnx.attention import MultiheadAttention

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nnx.relu,
    "gelu": lambda x: nnx.gelu(x, approximate=False),
}


class _Layer(nnx.Module):
    """Base class of encoder and decoder layers; arguments as in torch.

    Args:
        d_model: features.
        nhead: heads of the attention.
        dim_feedforward: features between the two linear layers.
        dropout: the dropout rate at torch's positions, in training (`model.train()`).
        activation: "relu", "gelu" (exact, as torch's; Flax's own is the tanh form), or a function.
        layer_norm_eps: the epsilon of the norms.
        batch_first: see `MultiheadAttention`.
        norm_first: whether the norms come before attention and feedforward.
        bias: whether linear layers, projections and norms have biases.
        rngs: for the weights and for dropout.
    """

    attentions: tuple[str, ...]
    norms: tuple[str, ...]

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Array], Array] = "relu",
        *,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        self.activation = activation if callable(activation) else ACTIVATIONS[activation]
        self.norm_first = norm_first
        for name in self.attentions:
            part = MultiheadAttention(
                d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, rngs=rngs
            )
            setattr(self, name, part)
        for name in self.norms:
            setattr(self, name, _norm(d_model, layer_norm_eps, bias, rngs))
        self.linear1 = nnx.Linear(d_model, dim_feedforward, use_bias=bias, rngs=rngs)
        self.linear2 = nnx.Linear(dim_feedforward, d_model, use_bias=bias, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)

    def _feedforward(self, x: Array) -> Array:
        return self.drop(self.linear2(self.drop(self.activation(self.linear1(x)))))

    def _residual(self, norm: Any, x: Array, block: Callable[[Array], Array]) -> Array:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _attend(self, attention: Any, x: Array, memory: Array, **masks: Any) -> Array:
        y, _ = attention(x, memory, memory, need_weights=False, **masks)
        return self.drop(y)


def _norm(features: int, epsilon: float, bias: bool, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.LayerNorm(
        features, epsilon=epsilon, use_bias=bias, use_fast_variance=False, rngs=rngs
    )


class TransformerEncoderLayer(_Layer):
    """`torch.nn.TransformerEncoderLayer`."""

    attentions = ("self_attn",)
    norms = ("norm1", "norm2")

    def __call__(
        self,
        src: Array,
        src_mask: Array | None = None,
        src_key_padding_mask: Array | None = None,
        is_causal: bool = False,
    ) -> Array:
        """Return the layer's output; masks as in `MultiheadAttention`."""

        def attend(x: Array) -> Array:
            return self._attend(
                self.self_attn,
                x,
                x,
                key_padding_mask=src_key_padding_mask,
                attn_mask=src_mask,
                is_causal=is_causal,
            )

        x = self._residual(self.norm1, src, attend)
        return self._residual(self.norm2, x, self._feedforward)


class TransformerDecoderLayer(_Layer):
    """`torch.nn.TransformerDecoderLayer`."""

    attentions = ("self_attn", "multihead_attn")
    norms = ("norm1", "norm2", "norm3")

    def __call__(
        self,
        tgt: Array,
        memory: Array,
        tgt_mask: Array | None = None,
        memory_mask: Array | None = None,
        tgt_key_padding_mask: Array | None = None,
        memory_key_padding_mask: Array | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Array:
        """Return the layer's output; masks as in `MultiheadAttention`."""

        def attend(x: Array) -> Array:
            return self._attend(
                self.self_attn,
                x,
                x,
                key_padding_mask=tgt_key_padding_mask,
                attn_mask=tgt_mask,
                is_causal=tgt_is_causal,
            )

        def attend_memory(x: Array) -> Array:
            return self._attend(
                self.multihead_attn,
                x,
                memory,
                key_padding_mask=memory_key_padding_mask,
                attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )

        x = self._residual(self.norm1, tgt, attend)
        x = self._residual(self.norm2, x, attend_memory)
        return self._residual(self.norm3, x, self._feedforward)


class _Repeated(nnx.Module):
    """Layers in sequence, followed by a norm, if any.

    Args:
        layer: creates a layer (`lambda: TransformerEncoderLayer(512, 8, rngs=rngs)`).
        num_layers: the number of layers.
        norm: the norm at the end, or None.
    """

    def __init__(
        self, layer: Callable[[], nnx.Module], num_layers: int, norm: nnx.Module | None = None
    ) -> None:
        self.layers = nnx.List([layer() for _ in range(num_layers)])
        self.norm = norm

    def _run(self, x: Array, *others: Any) -> Array:
        for layer in self.layers:
            x = layer(x, *others)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Repeated):
    """`torch.nn.TransformerEncoder`."""

    def __call__(
        self,
        src: Array,
        mask: Array | None = None,
        src_key_padding_mask: Array | None = None,
        is_causal: bool = False,
    ) -> Array:
        """Return the last layer's output, normalized; masks as in `MultiheadAttention`."""
        return self._run(src, mask, src_key_padding_mask, is_causal)


class TransformerDecoder(_Repeated):
    """`torch.nn.TransformerDecoder`."""

    def __call__(
        self,
        tgt: Array,
        memory: Array,
        tgt_mask: Array | None = None,
        memory_mask: Array | None = None,
        tgt_key_padding_mask: Array | None = None,
        memory_key_padding_mask: Array | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Array:
        """Return the last layer's output, normalized; masks as in `MultiheadAttention`."""
        return self._run(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )


class Transformer(nnx.Module):
    """`torch.nn.Transformer`: encoder and decoder, each with a norm at its end.

    Further arguments are those of the layers.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        *,
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        options |= {"layer_norm_eps": layer_norm_eps, "bias": bias, "rngs": rngs}
        self.encoder = TransformerEncoder(
            lambda: TransformerEncoderLayer(d_model, nhead, **options),
            num_encoder_layers,
            _norm(d_model, layer_norm_eps, bias, rngs),
        )
        self.decoder = TransformerDecoder(
            lambda: TransformerDecoderLayer(d_model, nhead, **options),
            num_decoder_layers,
            _norm(d_model, layer_norm_eps, bias, rngs),
        )

    def __call__(
        self,
        src: Array,
        tgt: Array,
        src_mask: Array | None = None,
        tgt_mask: Array | None = None,
        memory_mask: Array | None = None,
        src_key_padding_mask: Array | None = None,
        tgt_key_padding_mask: Array | None = None,
        memory_key_padding_mask: Array | None = None,
    ) -> Array:
        """Return the decoder's output; masks as in `MultiheadAttention`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        )
