"""The sizes of Gemma3TextModel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gemma3TextConfig:
    """The sizes of Gemma3TextModel."""

    initializer_range: float = 0.02
    vocab_size: int = 128
    hidden_size: int = 48
    sliding_attention_rope_theta: float = 10000.0
    head_dim: int = 16
    full_attention_rope_theta: float = 1000000.0
    rms_norm_eps: float = 1e-06
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 96
