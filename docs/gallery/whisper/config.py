"""The sizes of WhisperForConditionalGeneration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WhisperForConditionalGenerationConfig:
    """The sizes of WhisperForConditionalGeneration."""

    vocab_size: int = 128
    encoder_layers: int = 3
    encoder_attention_heads: int = 4
    decoder_layers: int = 2
    decoder_attention_heads: int = 4
    decoder_ffn_dim: int = 64
    encoder_ffn_dim: int = 64
    d_model: int = 32
    max_source_positions: int = 30
