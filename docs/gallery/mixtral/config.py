"""The sizes of MixtralForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MixtralForCausalLMConfig:
    """The sizes of MixtralForCausalLM."""

    vocab_size: int = 128
    hidden_size: int = 48
    intermediate_size: int = 96
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    num_experts_per_tok: int = 2
    num_local_experts: int = 4
    rope_theta: float = 1000000.0
