"""The sizes of GptOssForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GptOssForCausalLMConfig:
    """The sizes of GptOssForCausalLM."""

    num_local_experts: int = 4
    vocab_size: int = 128
    hidden_size: int = 48
    intermediate_size: int = 96
    head_dim: int = 16
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    num_experts_per_tok: int = 2
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    attention_scaling: float = 1.3465735902799727
