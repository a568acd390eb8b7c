"""The models of docs/gallery: by name, as small as a port shows all that a large one has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A model of the gallery.

    Attributes:
        title: what it is called.
        build: makes it, random, from a small configuration of its own class.
        inputs: argument → shape ("f 2 3 32 32": numbers; "100 2 7": integers below 100; "mask 2 7": ones).
        needs: the package that has it.
    """

    title: str
    build: Callable[[], Any]
    inputs: dict[str, str]
    needs: str = "transformers"


def _transformers(kind: str, config: str, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        transformers.logging.set_verbosity_error()
        made = getattr(transformers, config)(**sizes)
        return getattr(transformers, kind)(made)

    return build


def _diffusers(kind: str, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        import diffusers

        return getattr(diffusers, kind)(**sizes)

    return build


def _tagger() -> Any:
    from examples.tagger.torch_tagger import Tagger

    return Tagger(vocabulary=100, embedding=24, hidden=20, tags=9)


def _mlp() -> Any:
    from examples.mlp.torch_mlp import MLP

    return MLP()


_GEMMA: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 5,
    "max_position_embeddings": 64,
    "query_pre_attn_scalar": 16,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ],
}
_DECODER: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_TOKENS = {"input_ids": "100 2 9"}
_IMAGE = {"pixel_values": "f 2 3 32 32"}

PIECES: dict[str, Piece] = {
    "mlp": Piece("The MLP of the README", _mlp, {"x": "f 2 784"}, "torch"),
    "lstm_tagger": Piece("A bidirectional LSTM tagger", _tagger, {"ids": "100 2 9"}, "torch"),
    "llama": Piece("Llama", _transformers("LlamaForCausalLM", "LlamaConfig", **_DECODER), _TOKENS),
    "qwen3": Piece(
        "Qwen 3", _transformers("Qwen3ForCausalLM", "Qwen3Config", head_dim=16, **_DECODER), _TOKENS
    ),
    "gemma3": Piece(
        "Gemma 3", _transformers("Gemma3ForCausalLM", "Gemma3TextConfig", **_GEMMA), _TOKENS
    ),
    "embedding_gemma": Piece(
        "EmbeddingGemma",
        _transformers(
            "Gemma3TextModel", "Gemma3TextConfig", use_bidirectional_attention=True, **_GEMMA
        ),
        {"input_ids": "100 2 9", "attention_mask": "mask 2 9"},
    ),
    "mixtral": Piece(
        "Mixtral",
        _transformers(
            "MixtralForCausalLM",
            "MixtralConfig",
            num_local_experts=4,
            num_experts_per_tok=2,
            **_DECODER,
        ),
        _TOKENS,
    ),
    "deepseek_v3": Piece(
        "DeepSeek V3",
        _transformers(
            "DeepseekV3ForCausalLM",
            "DeepseekV3Config",
            **{**_DECODER, "num_key_value_heads": 4},
            moe_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            q_lora_rank=20,
            kv_lora_rank=24,
            qk_rope_head_dim=8,
            qk_nope_head_dim=12,
            v_head_dim=10,
        ),
        _TOKENS,
    ),
    "gpt_oss": Piece(
        "GPT-OSS",
        _transformers(
            "GptOssForCausalLM",
            "GptOssConfig",
            num_local_experts=4,
            num_experts_per_tok=2,
            head_dim=16,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            **_DECODER,
        ),
        _TOKENS,
    ),
    "mamba": Piece(
        "Mamba",
        _transformers(
            "MambaForCausalLM",
            "MambaConfig",
            vocab_size=128,
            hidden_size=24,
            state_size=6,
            num_hidden_layers=2,
            time_step_rank=5,
        ),
        _TOKENS,
    ),
    "t5": Piece(
        "T5",
        _transformers(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=128,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=4,
        ),
        {"input_ids": "100 2 9", "decoder_input_ids": "100 2 7"},
    ),
    "whisper": Piece(
        "Whisper",
        _transformers(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            vocab_size=128,
            num_mel_bins=20,
            d_model=32,
            encoder_layers=3,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=30,
            max_target_positions=24,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        ),
        {"input_features": "f 2 20 60", "decoder_input_ids": "100 2 7"},
    ),
    "clip_text": Piece(
        "CLIP, text",
        _transformers(
            "CLIPTextModelWithProjection",
            "CLIPTextConfig",
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            projection_dim=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=20,
            eos_token_id=99,
        ),
        _TOKENS,
    ),
    "clip_vision": Piece(
        "CLIP, vision",
        _transformers(
            "CLIPVisionModelWithProjection",
            "CLIPVisionConfig",
            hidden_size=32,
            intermediate_size=64,
            projection_dim=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        ),
        _IMAGE,
    ),
    "siglip": Piece(
        "SigLIP, vision",
        _transformers(
            "SiglipVisionModel",
            "SiglipVisionConfig",
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        ),
        _IMAGE,
    ),
    "vit": Piece(
        "ViT",
        _transformers(
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
            num_labels=10,
        ),
        _IMAGE,
    ),
    "dinov2": Piece(
        "DINOv2",
        _transformers(
            "Dinov2Model",
            "Dinov2Config",
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        ),
        _IMAGE,
    ),
    "convnext": Piece(
        "ConvNeXt",
        _transformers(
            "ConvNextForImageClassification",
            "ConvNextConfig",
            depths=[2, 2, 3, 2],
            hidden_sizes=[8, 12, 16, 20],
            num_labels=10,
        ),
        {"pixel_values": "f 2 3 64 64"},
    ),
    "swin": Piece(
        "Swin",
        _transformers(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=96,
            patch_size=4,
            embed_dim=20,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            num_labels=10,
        ),
        {"pixel_values": "f 2 3 96 96"},
    ),
    "autoencoder_kl": Piece(
        "Stable Diffusion's AutoencoderKL",
        _diffusers(
            "AutoencoderKL",
            block_out_channels=(16, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=2,
            norm_num_groups=8,
        ),
        {"sample": "f 2 3 32 32"},
        "diffusers",
    ),
    "dit": Piece(
        "DiT",
        _diffusers(
            "DiTTransformer2DModel",
            num_attention_heads=4,
            attention_head_dim=8,
            num_layers=3,
            sample_size=8,
            out_channels=8,
            num_embeds_ada_norm=20,
        ),
        {"hidden_states": "f 2 4 8 8", "timestep": "20 2", "class_labels": "20 2"},
        "diffusers",
    ),
    "qwen_image_vae": Piece(
        "Qwen-Image's VAE",
        _diffusers(
            "AutoencoderKLQwenImage",
            base_dim=16,
            z_dim=4,
            dim_mult=[1, 2],
            num_res_blocks=1,
            temperal_downsample=[False],
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ),
        {"sample": "f 2 3 1 32 32"},
        "diffusers",
    ),
}


def names() -> Iterator[tuple[str, str]]:
    """Name and title of every piece."""
    for name, piece in PIECES.items():
        yield name, piece.title


def build(name: str) -> tuple[Any, Inputs]:
    """The model in evaluation mode, and its inputs."""
    import torch

    torch.manual_seed(0)
    model = PIECES[name].build().eval().float()
    return model, inputs(name)


def shapes(name: str, arguments: Sequence[Any]) -> Iterator[tuple[str, Inputs]]:
    """Inputs to compare a port with: those of the recording, and other sizes where these are free.

    Args:
        name: of the piece.
        arguments: those of the port, with names for the sides that are free.
    """
    yield "as recorded", inputs(name)
    free = {side for one in arguments for side in one.shape if isinstance(side, str)}
    if "batch" in free:
        yield "batch 1", inputs(name, batch=1)
        yield "batch 3", inputs(name, batch=3)
    ranks = {one.name: len(one.shape) for one in arguments}
    if "length" in free and set(ranks.values()) == {2}:
        yield "other lengths", inputs(name, longer=2)


def inputs(name: str, batch: int = 2, longer: int = 0) -> Inputs:
    """What it is recorded with, drawn from a seed.

    Args:
        name: of the piece.
        batch: rows.
        longer: how much is added to the second axis.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    made: Inputs = {}
    for argument, text in PIECES[name].inputs.items():
        kind, *sides = text.split()
        shape = tuple(map(int, sides))
        shape = (batch, *(side + longer * (at == 0) for at, side in enumerate(shape[1:])))
        if kind == "f":
            made[argument] = torch.randn(shape, generator=generator)
        elif kind == "mask":
            made[argument] = torch.ones(shape, dtype=torch.int64)
        else:
            made[argument] = torch.randint(0, int(kind), shape, generator=generator)
    return made
