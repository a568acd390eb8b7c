"""The sizes of T5ForConditionalGeneration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class T5ForConditionalGenerationConfig:
    """The sizes of T5ForConditionalGeneration."""

    vocab_size: int = 128
    d_model: int = 32
    d_kv: int = 8
    d_ff: int = 64
    num_heads: int = 4
    relative_attention_num_buckets: int = 32
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
