"""The sizes of Gemma3ForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gemma3ForCausalLMConfig:
    """The sizes of Gemma3ForCausalLM."""

    vocab_size: int = 128
    hidden_size: int = 48
    intermediate_size: int = 96
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    sliding_attention_rope_theta: float = 10000.0
    full_attention_rope_theta: float = 1000000.0
