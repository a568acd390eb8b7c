"""The sizes of MambaForCausalLM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MambaForCausalLMConfig:
    """The sizes of MambaForCausalLM."""

    hidden_size: int = 24
    layer_norm_epsilon: float = 1e-05
    intermediate_size: int = 48
    state_size: int = 6
    conv_kernel: int = 4
    time_step_rank: int = 5
    vocab_size: int = 128
    num_hidden_layers: int = 2
