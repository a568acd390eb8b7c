"""The sizes of LlamaForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LlamaForCausalLMConfig:
    """The sizes of LlamaForCausalLM."""

    vocab_size: int = 128
    hidden_size: int = 48
    intermediate_size: int = 96
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    head_dim: int = 12
    rope_theta: float = 10000.0
