"""A small Llama with random weights: the original of this page."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()
