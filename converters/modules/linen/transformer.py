"""`torch.nn.Transformer` and its parts as linen modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flax import linen as nn
from jax import Array

from converters.modules.linen.attention import MultiheadAttention

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
}


def _layer_norm(epsilon: float, bias: bool) -> nn.Module:
    return nn.LayerNorm(epsilon=epsilon, use_bias=bias, use_fast_variance=False)


class _Layer(nn.Module):
    """Base class of encoder and decoder layers; attributes as in torch.

    Attributes:
        d_model: features.
        nhead: heads of the attention.
        dim_feedforward: features between the two linear layers.
        dropout: the dropout rate at torch's positions, if not deterministic.
        activation: "relu", "gelu" (exact, as torch's; Flax's own is the tanh form), or a function.
        layer_norm_eps: the epsilon of the norms.
        batch_first: see `MultiheadAttention`.
        norm_first: whether the norms come before attention and feedforward.
        bias: whether linear layers, projections and norms have biases.
    """

    d_model: int
    nhead: int
    dim_feedforward: int = 2048
    dropout: float = 0.1
    activation: str | Callable[[Array], Array] = "relu"
    layer_norm_eps: float = 1e-5
    batch_first: bool = False
    norm_first: bool = False
    bias: bool = True

    def _norm(self) -> nn.Module:
        return _layer_norm(self.layer_norm_eps, self.bias)

    def _attention(self) -> MultiheadAttention:
        return MultiheadAttention(
            self.d_model, self.nhead, self.dropout, bias=self.bias, batch_first=self.batch_first
        )

    def _common(self) -> None:
        self.linear1 = nn.Dense(self.dim_feedforward, use_bias=self.bias)
        self.linear2 = nn.Dense(self.d_model, use_bias=self.bias)
        self.drop = nn.Dropout(self.dropout)

    def _feedforward(self, x: Array, deterministic: bool) -> Array:
        act = self.activation if callable(self.activation) else ACTIVATIONS[self.activation]
        inner = self.drop(act(self.linear1(x)), deterministic=deterministic)
        return self.drop(self.linear2(inner), deterministic=deterministic)

    def _residual(self, norm: nn.Module, x: Array, block: Callable[[Array], Array]) -> Array:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))


class TransformerEncoderLayer(_Layer):
    """`torch.nn.TransformerEncoderLayer`."""

    def setup(self) -> None:
        """Create the parts."""
        self.self_attn = self._attention()
        self._common()
        self.norm1, self.norm2 = self._norm(), self._norm()

    def __call__(
        self,
        src: Array,
        src_mask: Array | None = None,
        src_key_padding_mask: Array | None = None,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
    ) -> Array:
        """Return the layer's output; masks as in `MultiheadAttention`."""

        def attend(x: Array) -> Array:
            y, _ = self.self_attn(
                x,
                x,
                x,
                key_padding_mask=src_key_padding_mask,
                attn_mask=src_mask,
                need_weights=False,
                is_causal=is_causal,
                deterministic=deterministic,
            )
            return self.drop(y, deterministic=deterministic)

        x = self._residual(self.norm1, src, attend)
        return self._residual(self.norm2, x, lambda x: self._feedforward(x, deterministic))


class TransformerDecoderLayer(_Layer):
    """`torch.nn.TransformerDecoderLayer`."""

    def setup(self) -> None:
        """Create the parts."""
        self.self_attn, self.multihead_attn = self._attention(), self._attention()
        self._common()
        self.norm1, self.norm2, self.norm3 = self._norm(), self._norm(), self._norm()

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
        *,
        deterministic: bool = True,
    ) -> Array:
        """Return the layer's output; masks as in `MultiheadAttention`."""

        def attend(x: Array) -> Array:
            y, _ = self.self_attn(
                x,
                x,
                x,
                key_padding_mask=tgt_key_padding_mask,
                attn_mask=tgt_mask,
                need_weights=False,
                is_causal=tgt_is_causal,
                deterministic=deterministic,
            )
            return self.drop(y, deterministic=deterministic)

        def attend_memory(x: Array) -> Array:
            y, _ = self.multihead_attn(
                x,
                memory,
                memory,
                key_padding_mask=memory_key_padding_mask,
                attn_mask=memory_mask,
                need_weights=False,
                is_causal=memory_is_causal,
                deterministic=deterministic,
            )
            return self.drop(y, deterministic=deterministic)

        x = self._residual(self.norm1, tgt, attend)
        x = self._residual(self.norm2, x, attend_memory)
        return self._residual(self.norm3, x, lambda x: self._feedforward(x, deterministic))


class _Repeated(nn.Module):
    """Layers in sequence, followed by a norm, if any.

    Attributes:
        layer: creates a layer (`lambda: TransformerEncoderLayer(512, 8)`).
        num_layers: the number of layers.
        final_norm: creates the norm at the end, or None.
    """

    layer: Callable[[], nn.Module]
    num_layers: int
    final_norm: Callable[[], nn.Module] | None = None

    def setup(self) -> None:
        """Create the parts, under torch's names."""
        self.layers = [self.layer() for _ in range(self.num_layers)]
        self.norm = self.final_norm() if self.final_norm is not None else None

    def _run(self, x: Array, *others: Any, **options: Any) -> Array:
        for layer in self.layers:
            x = layer(x, *others, **options)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Repeated):
    """`torch.nn.TransformerEncoder`."""

    def __call__(
        self,
        src: Array,
        mask: Array | None = None,
        src_key_padding_mask: Array | None = None,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
    ) -> Array:
        """Return the last layer's output, normalized; masks as in `MultiheadAttention`."""
        return self._run(src, mask, src_key_padding_mask, is_causal, deterministic=deterministic)


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
        *,
        deterministic: bool = True,
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
            deterministic=deterministic,
        )


class Transformer(_Layer):
    """`torch.nn.Transformer`: encoder and decoder, each with a norm at its end."""

    d_model: int = 512
    nhead: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6

    def setup(self) -> None:
        """Create the parts."""
        arguments = {
            name: getattr(self, name)
            for name in _Layer.__dataclass_fields__
            if name not in ("parent", "name")
        }
        norm = partial(_layer_norm, self.layer_norm_eps, self.bias)
        self.encoder = TransformerEncoder(
            lambda: TransformerEncoderLayer(**arguments), self.num_encoder_layers, norm
        )
        self.decoder = TransformerDecoder(
            lambda: TransformerDecoderLayer(**arguments), self.num_decoder_layers, norm
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
        *,
        deterministic: bool = True,
    ) -> Array:
        """Return the decoder's output; masks as in `MultiheadAttention`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, deterministic=deterministic)
        return self.decoder(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            deterministic=deterministic,
        )
