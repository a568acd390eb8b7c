"""Models of timm, torchvision and diffusers, as small as they come, with random weights and inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from migrate.port.weights import stir

_SEGMENTATION = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
_DETECTION = (
    "ssdlite320_mobilenet_v3_large",
    "ssd300_vgg16",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
)
_VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "mvit_v2_s", "swin3d_t", "s3d")
# Sides of images where the model does not take 96 (clips: 64).
_SIDES = {
    "vit_b_16": 224,
    "maxvit_t": 224,
    "inception_v3": 128,
    "ssd300_vgg16": 300,
    "mvit_v2_s": 224,
    "s3d": 224,
}


def timm_names() -> Iterator[tuple[str, str]]:
    """The smallest model of each family (a module of timm.models)."""
    import timm

    for family in sorted(timm.list_modules()):
        found = timm.list_models(module=family)
        if found:
            small = min(found, key=lambda name: (_weight(name), len(name), name))
            yield small, family


def _weight(name: str) -> int:
    """How large its name says it is."""
    order = ("test_", "atto", "femto", "pico", "nano", "tiny", "_xxs", "_xs", "_s", "small", "18")
    return next((at for at, word in enumerate(order) if word in name), len(order))


def timm_build(name: str) -> tuple[Any, dict[str, Any]]:
    """The model, and an image of the smallest size that it takes."""
    import timm
    import torch

    torch.manual_seed(0)
    model = _stirred(timm.create_model(name, pretrained=False))
    wanted = model.default_cfg
    fixed = wanted.get("fixed_input_size", False)
    shape = wanted["input_size"] if fixed else wanted.get("min_input_size", wanted["input_size"])
    return model, {"x": torch.randn(2, *shape)}


def torchvision_names() -> Iterator[tuple[str, str]]:
    """Classification (the smallest of each family), segmentation, detection and video."""
    from torchvision import models

    families: dict[str, list[tuple[int, str]]] = {}
    for name in models.list_models(module=models):
        family = models.get_model_builder(name).__module__.rpartition(".")[2]
        size = models.get_model_weights(name).DEFAULT.meta["num_params"]
        families.setdefault(family, []).append((size, name))
    for family, found in families.items():
        yield min(found)[1], family
    yield from ((name, "segmentation") for name in _SEGMENTATION)
    yield from ((name, "detection, up to its boxes") for name in _DETECTION)
    yield from ((name, "video") for name in _VIDEO)


def torchvision_build(name: str) -> tuple[Any, dict[str, Any]]:
    """The model, and images or clips."""
    import torch
    from torchvision import models

    torch.manual_seed(0)
    whole = name not in (*_SEGMENTATION, *_DETECTION)
    how: dict[str, Any] = {} if whole else {"weights_backbone": None}
    model = _stirred(models.get_model(name, weights=None, **how))
    if name in _DETECTION:
        model = _scores(model)
    side = _SIDES.get(name, 64 if name in _VIDEO else 96)
    shape = (2, 3, 16, side, side) if name in _VIDEO else (2, 3, side, side)
    (argument, *_) = inspect.signature(model.forward).parameters
    return model, {argument: torch.randn(shape)}


def _scores(detector: Any) -> Any:
    """What a detector computes before it chooses boxes: its backbone, and its heads on what that gives."""
    import torch

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = detector.backbone
            self.head = detector.rpn.head if hasattr(detector, "rpn") else detector.head

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(list(self.backbone(x).values()))

    return Scores().eval()


# Class → (arguments that make it small, inputs as shapes; "i" in front: whole numbers below 10).
_DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "AutoencoderKL": (
        {
            "block_out_channels": (32, 32),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "norm_num_groups": 8,
        },
        {"sample": (2, 3, 32, 32)},
    ),
    "AutoencoderTiny": ({"encoder_block_out_channels": (32, 32), "decoder_block_out_channels": (32, 32),
      "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, {"sample": (2, 3, 32, 32)}),
    "VQModel": ({"block_out_channels": (32,), "norm_num_groups": 8}, {"sample": (2, 3, 32, 32)}),
    "AutoencoderDC": ({"encoder_block_out_channels": (32, 32), "decoder_block_out_channels": (32, 32),
      "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
      "encoder_block_types": "ResBlock", "decoder_block_types": "ResBlock",
      "encoder_qkv_multiscales": ((), ()), "decoder_qkv_multiscales": ((), ()),
      "latent_channels": 4, "attention_head_dim": 8}, {"sample": (2, 3, 32, 32)}),
    "AutoencoderKLQwenImage": ({"base_dim": 16, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1,
      "temperal_downsample": [False], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
      {"sample": (1, 3, 1, 32, 32)}),
    "AutoencoderKLWan": ({"base_dim": 16, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1,
      "temperal_downsample": [False], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
      {"sample": (1, 3, 1, 32, 32)}),
    "ConsistencyDecoderVAE": ({}, {"sample": (1, 3, 32, 32)}),
    "UNet2DModel": ({"sample_size": 16, "block_out_channels": (32, 64), "norm_num_groups": 8,
      "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
      "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
      {"sample": (2, 3, 16, 16), "itimestep": (2,)}),
    "UNet2DConditionModel": ({"sample_size": 16, "block_out_channels": (32, 64), "norm_num_groups": 8,
      "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
      "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": 16,
      "attention_head_dim": 8},
      {"sample": (2, 4, 16, 16), "itimestep": (2,), "encoder_hidden_states": (2, 7, 16)}),
    "UNet1DModel": ({"block_out_channels": (8, 16), "in_channels": 14, "out_channels": 14,
      "use_timestep_embedding": True, "flip_sin_to_cos": False, "freq_shift": 1.0, "act_fn": "swish",
      "out_block_type": "OutConv1DBlock", "mid_block_type": "MidResTemporalBlock1D",
      "down_block_types": ("DownResnetBlock1D", "DownResnetBlock1D"), "up_block_types": ("UpResnetBlock1D",)},
      {"sample": (2, 14, 16), "itimestep": (2,)}),
    "UNet3DConditionModel": ({"sample_size": 16, "block_out_channels": (4, 8), "norm_num_groups": 4,
      "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
      "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "cross_attention_dim": 8,
      "attention_head_dim": 2, "layers_per_block": 1},
      {"sample": (1, 4, 4, 16, 16), "itimestep": (1,), "encoder_hidden_states": (1, 4, 8)}),
    "AsymmetricAutoencoderKL": ({"down_block_types": ("DownEncoderBlock2D",) * 2,
      "down_block_out_channels": (16, 32), "layers_per_down_block": 1, "up_block_out_channels": (16, 32),
      "up_block_types": ("UpDecoderBlock2D",) * 2, "layers_per_up_block": 1, "norm_num_groups": 8,
      "sample_size": 32}, {"sample": (1, 3, 32, 32)}),
    "AuraFlowTransformer2DModel": ({"sample_size": 8, "patch_size": 2, "in_channels": 4,
      "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4,
      "caption_projection_dim": 32, "joint_attention_dim": 32, "out_channels": 4, "pos_embed_max_size": 64},
      {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 32), "timestep": (2,)}),
    "CogVideoXTransformer3DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
      "out_channels": 4, "time_embed_dim": 2, "text_embed_dim": 8, "num_layers": 1, "sample_width": 8,
      "sample_height": 8, "sample_frames": 8, "max_text_seq_length": 8},
      {"hidden_states": (1, 2, 4, 8, 8), "encoder_hidden_states": (1, 8, 8), "itimestep": (1,)}),
    "DiTTransformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
      "sample_size": 8, "norm_num_groups": 1, "out_channels": 8},
      {"hidden_states": (2, 4, 8, 8), "itimestep": (2,), "iclass_labels": (2,)}),
    "PixArtTransformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
      "sample_size": 8, "cross_attention_dim": 16, "caption_channels": 8, "use_additional_conditions": False},
      {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 8), "itimestep": (2,)}),
    "SD3Transformer2DModel": ({"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2,
      "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 16,
      "caption_projection_dim": 16, "pooled_projection_dim": 16, "out_channels": 4, "pos_embed_max_size": 8},
      {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 16), "pooled_projections": (2, 16),
       "itimestep": (2,)}),
    "FluxTransformer2DModel": ({"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
      "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
      "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
      {"hidden_states": (1, 16, 4), "encoder_hidden_states": (1, 7, 32), "pooled_projections": (1, 32),
       "timestep": (1,), "img_ids": (16, 3), "txt_ids": (7, 3)}),
    "Transformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 32,
      "norm_num_groups": 8, "cross_attention_dim": 16},
      {"hidden_states": (2, 32, 8, 8), "encoder_hidden_states": (2, 7, 16)}),
    "PriorTransformer": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
      "embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4},
      {"hidden_states": (2, 16), "itimestep": (2,), "proj_embedding": (2, 16),
       "encoder_hidden_states": (2, 7, 16)}),
    "SanaTransformer2DModel": ({"patch_size": 1, "in_channels": 4, "out_channels": 4, "num_layers": 1,
      "attention_head_dim": 4, "num_attention_heads": 2, "num_cross_attention_heads": 2,
      "cross_attention_head_dim": 4, "cross_attention_dim": 8, "caption_channels": 8, "sample_size": 8},
      {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 8), "itimestep": (2,)}),
    "UVit2DModel": ({"hidden_size": 32, "cond_embed_dim": 32, "micro_cond_encode_dim": 4,
      "micro_cond_embed_dim": 20, "encoder_hidden_size": 32, "vocab_size": 32, "codebook_size": 32,
      "in_channels": 32, "block_out_channels": 32, "num_res_blocks": 1, "num_hidden_layers": 1,
      "num_attention_heads": 2, "intermediate_size": 64, "block_num_heads": 2},
      {"iinput_ids": (2, 8, 8), "encoder_hidden_states": (2, 7, 32), "pooled_text_emb": (2, 32),
       "micro_conds": (2, 5)}),
    "ControlNetModel": ({"block_out_channels": (32, 64), "norm_num_groups": 8, "cross_attention_dim": 16,
      "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "attention_head_dim": 8,
      "conditioning_embedding_out_channels": (8, 8)},
      {"sample": (1, 4, 16, 16), "itimestep": (1,), "encoder_hidden_states": (1, 7, 16),
       "controlnet_cond": (1, 3, 32, 32)}),
}  # fmt: skip


def diffusers_names() -> Iterator[tuple[str, str]]:
    """Autoencoders, UNets and transformers."""
    for name in _DIFFUSERS:
        family = "autoencoder" if "Auto" in name or "VQ" in name else "transformer"
        yield name, "UNet" if name.startswith("UNet") else family


def diffusers_build(name: str) -> tuple[Any, dict[str, Any]]:
    """The model, and its inputs."""
    import diffusers
    import torch

    how, shapes = _DIFFUSERS[name]
    torch.manual_seed(0)
    model = _stirred(getattr(diffusers, name)(**how))
    inputs = {}
    for key, shape in shapes.items():
        whole = key.startswith("i") and not key.startswith(("img", "image"))
        inputs[key[1:] if whole else key] = (
            torch.randint(1, 10, shape) if whole else torch.randn(shape)
        )
    return model, inputs


def _stirred(model: Any) -> Any:
    """The model in evaluation mode, with noise on what is constant."""
    stir(model.eval(), seed=7)
    return model
