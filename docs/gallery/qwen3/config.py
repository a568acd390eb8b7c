"""The sizes of Qwen3ForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Qwen3ForCausalLMConfig:
    """The sizes of Qwen3ForCausalLM."""

    rope_theta: float = 10000.0
    head_dim: int = 16
    hidden_size: int = 48
    rms_norm_eps: float = 1e-06
    num_attention_heads: int = 4
    initializer_range: float = 0.02
    num_key_value_heads: int = 2
    intermediate_size: int = 96
    vocab_size: int = 128
    num_hidden_layers: int = 3
