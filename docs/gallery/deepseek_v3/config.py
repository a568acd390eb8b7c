"""The sizes of DeepseekV3ForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeepseekV3ForCausalLMConfig:
    """The sizes of DeepseekV3ForCausalLM."""

    vocab_size: int = 128
    hidden_size: int = 48
    intermediate_size: int = 96
    moe_intermediate_size: int = 32
    num_attention_heads: int = 4
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    kv_lora_rank: int = 24
    q_lora_rank: int = 20
    qk_rope_head_dim: int = 8
    v_head_dim: int = 10
    qk_nope_head_dim: int = 12
    n_group: int = 4
    num_experts_per_tok: int = 3
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    head_dim: int = 8
    rope_theta: float = 10000.0
    num_local_experts: int = 8
