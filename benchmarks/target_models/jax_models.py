"""JAX's side of benchmarks/target_pairs.py: public models at small sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

SMALL = {"hidden_size": 16, "patches": {"size": (8, 8)}, "num_classes": 5}


def vit_jax() -> Any:
    """google-research/vision_transformer's ViT."""
    import ml_collections
    from vit_jax.models_vit import VisionTransformer

    return VisionTransformer(
        num_classes=5,
        patches=ml_collections.ConfigDict({"size": (8, 8)}),
        hidden_size=16,
        transformer={"mlp_dim": 24, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.0},
    )


def vit_jax_wide() -> Any:
    """The same with the MLP as wide as timm's."""
    return vit_jax().clone(
        transformer={"mlp_dim": 32, "num_heads": 2, "num_layers": 2, "dropout_rate": 0.0}
    )


def vit_jax_mixer() -> Any:
    """google-research/vision_transformer's MLP-Mixer."""
    import ml_collections
    from vit_jax.models_mixer import MlpMixer

    return MlpMixer(
        patches=ml_collections.ConfigDict({"size": (8, 8)}),
        num_classes=5,
        num_blocks=2,
        hidden_dim=16,
        tokens_mlp_dim=8,
        channels_mlp_dim=32,
    )


def _without_tensorflow() -> None:
    """Have TensorFlow imported for what no model needs: in its place there is nothing."""
    from importlib.machinery import ModuleSpec

    for one in ("tensorflow", "tensorflow.io", "tensorflow.io.gfile"):
        module = sys.modules.setdefault(one, mock.MagicMock(__spec__=ModuleSpec(one, None)))
        module.Tensor = module.Variable = module.RaggedTensor = type("Nothing", (), {})


def _big_vision(name: str) -> Any:
    """A module of big_vision, whose utilities import TensorFlow."""
    import importlib

    _without_tensorflow()
    return importlib.import_module(f"big_vision.models.{name}")


def big_vision_vit(pool: str = "tok", scan: bool = False) -> Any:
    """big_vision's ViT; `map`: SigLIP's."""
    return _big_vision("vit").Model(
        num_classes=5,
        patch_size=(8, 8),
        width=16,
        depth=2,
        mlp_dim=32,
        num_heads=2,
        pool_type=pool,
        scan=scan,
    )


def big_vision_mixer() -> Any:
    """big_vision's MLP-Mixer."""
    return _big_vision("mlp_mixer").MlpMixer(
        patch_size=(8, 8),
        num_classes=5,
        num_blocks=2,
        hidden_dim=16,
        tokens_mlp_dim=8,
        channels_mlp_dim=32,
    )


def big_vision_bit() -> Any:
    """big_vision's BiT ResNet."""
    return _big_vision("bit_paper").Model(num_classes=5, depth=(1, 1, 1, 1))


def bonsai_resnet(rngs: Any) -> Any:
    """bonsai's ResNet-50 (nnx)."""
    from bonsai.models.resnet.modeling import ModelConfig, ResNet

    return ResNet(ModelConfig.resnet50(), rngs=rngs)


def bonsai_vit(rngs: Any) -> Any:
    """bonsai's ViT (nnx); its call wants random numbers, of which evaluation has no need."""
    from bonsai.models.vit.modeling import ModelConfig, ViTClassificationModel

    class Vit(ViTClassificationModel):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return super().__call__(x, rngs=None)

    config = ModelConfig(
        image_size=(32, 32),
        patch_size=(8, 8),
        num_channels=3,
        hidden_dim=16,
        attn_dropout_prob=0.0,
        dropout_prob=0.0,
        num_heads=2,
        mlp_dim=24,
        eps=1e-12,
        num_layers=2,
        num_labels=5,
    )
    return Vit(config, rngs=rngs)


def bonsai_convnext(rngs: Any, *, eps: float = 1e-6) -> Any:
    """bonsai's ConvNeXt (nnx), small; its own epsilon is 1e-12, torchvision's 1e-6."""
    from bonsai.models.convnext.modeling import ConvNeXt, ModelConfig

    class Next(ConvNeXt):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return super().__call__(x, rngs=None)

    config = ModelConfig(
        stage_depths=(1, 1, 2),
        stage_dims=(8, 16, 32),
        drop_path_rate=0.0,
        num_classes=5,
        layernorm_eps=eps,
    )
    return Next(config, rngs=rngs)


def bonsai_convnext_own(rngs: Any) -> Any:
    """The same with the epsilon that bonsai gives it."""
    return bonsai_convnext(rngs, eps=1e-12)


def bonsai_densenet(rngs: Any) -> Any:
    """bonsai's DenseNet (nnx), small."""
    from bonsai.models.densenet121.modeling import DenseNet, ModelConfig

    config = ModelConfig(num_classes=5, dense_block_layers=[2, 2], growth_rate=4)
    return DenseNet(config, rngs=rngs)


def _with_newshape() -> None:
    """Have `jnp.reshape` take the name that it had when flaxmodels was written."""
    import functools

    import jax.numpy as jnp

    own = jnp.reshape

    @functools.wraps(own)
    def reshape(a: Any, shape: Any = None, *, newshape: Any = None, **how: Any) -> Any:
        return own(a, newshape if shape is None else shape, **how)

    jnp.reshape = reshape


def flaxmodels_gpt2() -> Any:
    """flaxmodels' GPT-2, small; its class lacks an attribute where nothing is downloaded."""
    from types import SimpleNamespace

    _with_newshape()
    from flaxmodels.gpt2.gpt2 import GPT2LMHeadModel

    class Undownloaded(GPT2LMHeadModel):  # type: ignore[misc]
        param_dict: Any = None

    config = SimpleNamespace(
        n_positions=16,
        n_embd=16,
        n_head=2,
        n_layer=2,
        n_inner=None,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        scale_attn_weights=True,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        vocab_size=31,
    )
    return Undownloaded(config=config)


def flaxmodels_stylegan2() -> Any:
    """flaxmodels' StyleGAN2, small, its noise fixed."""
    _with_newshape()
    from flaxmodels.stylegan2.generator import Generator

    class Fixed(Generator):  # type: ignore[misc]
        def __call__(self, z: Any) -> Any:
            return super().__call__(z, train=False, noise_mode="const")

    return Fixed(
        resolution=16,
        z_dim=8,
        w_dim=8,
        mapping_layer_features=8,
        num_ws=6,
        num_mapping_layers=2,
        fmap_base=32,
        fmap_max=16,
    )


def gemma3() -> Any:
    """Google's `gemma`: Gemma 3."""
    _without_tensorflow()
    from gemma import gm
    from gemma.gm.nn import _config, _modules

    kinds = (_modules.AttentionType.LOCAL_SLIDING,) * 5 + (_modules.AttentionType.GLOBAL,)
    config = _config.TransformerConfig(
        num_embed=32,
        embed_dim=16,
        hidden_dim=24,
        num_heads=4,
        head_dim=8,
        num_kv_heads=2,
        final_logit_softcap=None,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        use_qk_norm=True,
        attention_types=kinds,
        query_pre_attn_norm=_config.QueryPreAttentionNormalization.BY_ONE_OVER_SQRT_HEAD_DIM,
        sliding_window_size=4,
        local_base_frequency=10_000,
        global_base_frequency=1_000_000,
    )
    return gm.nn.Transformer(config=config)


def diffusers_unet() -> Any:
    """diffusers' former Flax UNet."""
    from diffusers import FlaxUNet2DConditionModel
    from torch_models import UNET

    return FlaxUNet2DConditionModel(**UNET)


def diffusers_vae() -> Any:
    """diffusers' former Flax autoencoder."""
    from diffusers import FlaxAutoencoderKL
    from torch_models import VAE

    return FlaxAutoencoderKL(**VAE)


# Haiku: a pair of functions.


def _haiku_mlp(x: Any) -> Any:
    import haiku as hk

    return hk.nets.MLP([8, 8, 3])(x)


def haiku_mlp_params(key: Any, x: Any) -> Any:
    """Of haiku's perceptron."""
    import haiku as hk

    return hk.transform(_haiku_mlp).init(key, x)


def haiku_mlp(params: Any, x: Any) -> Any:
    """Haiku's perceptron."""
    import haiku as hk

    return hk.without_apply_rng(hk.transform(_haiku_mlp)).apply(params, x)


def _haiku_resnet(x: Any, is_training: bool = False) -> Any:
    import haiku as hk

    return hk.nets.ResNet18(1000, resnet_v2=False)(x, is_training=is_training)


def haiku_resnet_params(key: Any, x: Any) -> Any:
    """Of haiku's ResNet-18, beside them the averages, which evaluation reads (they are made in training)."""
    import haiku as hk

    params, state = hk.transform_with_state(_haiku_resnet).init(key, x, is_training=True)
    averages = {name: its["average"] for name, its in state.items()}
    return {"params": params, "averages": averages}


def haiku_resnet(params: Any, x: Any) -> Any:
    """Haiku's ResNet-18."""
    import haiku as hk

    run = hk.without_apply_rng(hk.transform_with_state(_haiku_resnet)).apply
    state = {name: {"average": one} for name, one in params["averages"].items()}
    return run(params["params"], state, x)[0]


# Equinox: a module is its own pytree.


def equinox_mlp_params(key: Any) -> Any:
    """Equinox's perceptron."""
    import equinox as eqx

    return eqx.nn.MLP(6, 3, 8, 2, key=key)


def vmapped(params: Any, x: Any) -> Any:
    """An equinox module on a batch."""
    import jax

    return jax.vmap(params)(x)


def equinox_convolutions_params(key: Any) -> Any:
    """Two convolutions and a head, in equinox."""
    import equinox as eqx
    import jax

    keys = jax.random.split(key, 3)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(8, 8, 3, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda x: x.reshape(-1)),
            eqx.nn.Linear(8 * 6 * 6, 5, key=keys[2]),
        ]
    )
