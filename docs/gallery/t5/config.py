"""The sizes of T5ForConditionalGeneration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class T5ForConditionalGenerationConfig:
    """The sizes of T5ForConditionalGeneration."""

    d_model: int = 32
    layer_norm_epsilon: float = 1e-06
    dropout_rate: float = 0.1
    num_heads: int = 4
    d_kv: int = 8
    initializer_factor: float = 1.0
    relative_attention_num_buckets: int = 32
    d_ff: int = 64
    vocab_size: int = 128
