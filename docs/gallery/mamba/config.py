"""The sizes of MambaForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MambaForCausalLMConfig:
    """The sizes of MambaForCausalLM."""

    vocab_size: int = 128
    hidden_size: int = 24
    state_size: int = 6
    layer_norm_epsilon: float = 1e-5
    conv_kernel: int = 4
    initializer_range: float = 0.1
    time_step_rank: int = 5
    time_step_scale: float = 1.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    intermediate_size: int = 48
