"""The sizes of DeepseekV3ForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeepseekV3ForCausalLMConfig:
    """The sizes of DeepseekV3ForCausalLM."""

    rope_theta: float = 10000.0
    head_dim: int = 8
    hidden_size: int = 48
    rms_norm_eps: float = 1e-06
    q_lora_rank: int = 20
    kv_lora_rank: int = 24
    initializer_range: float = 0.02
    num_attention_heads: int = 4
    qk_nope_head_dim: int = 12
    qk_rope_head_dim: int = 8
    v_head_dim: int = 10
    intermediate_size: int = 96
    num_local_experts: int = 8
    n_group: int = 4
    num_experts_per_tok: int = 3
    routed_scaling_factor: float = 2.5
    moe_intermediate_size: int = 32
    n_shared_experts: int = 1
    vocab_size: int = 128
