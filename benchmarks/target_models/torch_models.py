"""Torch's side of benchmarks/target_pairs.py: the public classes at small sizes."""

from __future__ import annotations

from typing import Any

SMALL = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2}


def vision_vit() -> Any:
    """torchvision's ViT."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(**SMALL, hidden_dim=16, mlp_dim=24, num_classes=5)


def timm_vit(pool: str = "token", act: str = "gelu_tanh", *, apart: bool = False) -> Any:
    """timm's ViT: with a class token (that has no position: `apart`), or SigLIP's pooling by attention."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=5,
        global_pool=pool,
        class_token=pool == "token",
        no_embed_class=apart,
        fc_norm=False,
        act_layer=act,
    )


def timm_mixer(act: str = "gelu_tanh") -> Any:
    """timm's MLP-Mixer."""
    from timm.layers import get_act_layer
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(
        num_classes=5,
        img_size=32,
        patch_size=8,
        num_blocks=2,
        embed_dim=16,
        mlp_ratio=(0.5, 2.0),
        act_layer=get_act_layer(act),
    )


def bit_resnet() -> Any:
    """timm's ResNet-v2 of BiT, a block in each stage."""
    from timm.models.resnetv2 import ResNetV2

    return ResNetV2(layers=(1, 1, 1, 1), num_classes=5, stem_type="fixed")


def vision_convnext() -> Any:
    """torchvision's ConvNeXt, small."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)]
    return ConvNeXt(blocks, num_classes=5)


def vision_densenet() -> Any:
    """torchvision's DenseNet, small."""
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=5)


def stylegan2() -> Any:
    """NVIDIA's StyleGAN2, small, its noise fixed."""
    from torch import nn
    from training.networks import Generator

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            synthesis = {"channel_base": 64, "channel_max": 16}
            self.net = Generator(8, 0, 8, 16, 3, {"num_layers": 2}, synthesis)

        def forward(self, z: Any) -> Any:
            return self.net(z, None, noise_mode="const")

    return Fixed()


def hf_vit(act: str = "gelu") -> Any:
    """transformers' ViT, today's."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=32,
            patch_size=8,
            num_labels=5,
            hidden_act=act,
        )
    )


def hf_gemma3() -> Any:
    """transformers' Gemma 3, text."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=4,
            query_pre_attn_scalar=8,
            max_position_embeddings=32,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )


_DECODER = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
    "use_cache": False,
}


def hf_llama() -> Any:
    """transformers' Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_DECODER))


def hf_mixtral() -> Any:
    """transformers' Mixtral."""
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 10000.0}
    config = MixtralConfig(**_DECODER, **experts)
    config._experts_implementation = "eager"  # its grouped products take no float64
    return MixtralForCausalLM(config)


def tokens() -> list[dict[str, Any]]:
    """Inputs without a 0, which Google's `gemma` takes for padding."""
    import numpy as np

    return [
        {"input_ids": np.random.default_rng(n).integers(1, 32, (2, 7), dtype=np.int32)}
        for n in range(2)
    ]


def hf_gpt2() -> Any:
    """transformers' GPT-2 of flaxmodels' size."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=31, n_positions=16)
    )


def diffusers_unet() -> Any:
    """Stable Diffusion's UNet, small."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(**UNET)


def diffusers_vae() -> Any:
    """Stable Diffusion's autoencoder, small."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(**VAE)


UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}
VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 8,
    "sample_size": 16,
}


def mlp() -> Any:
    """A perceptron of three layers."""
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutions() -> Any:
    """A plain convolutional net: what haiku and equinox have layers for."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 5),
    )
