"""A stand-in for sentencepiece: llama2.c imports it, and needs it for raw text only."""


class SentencePieceProcessor:
    """Named by an import only."""
