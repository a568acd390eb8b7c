"""The sizes of WhisperForConditionalGeneration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WhisperForConditionalGenerationConfig:
    """The sizes of WhisperForConditionalGeneration."""

    d_model: int = 32
    encoder_attention_heads: int = 4
    encoder_ffn_dim: int = 64
    max_source_positions: int = 30
    encoder_layers: int = 3
    decoder_attention_heads: int = 4
    decoder_ffn_dim: int = 64
    vocab_size: int = 128
    decoder_layers: int = 2
