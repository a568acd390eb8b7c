"""Public JAX models and the torch models that they are ports of: are the weights fitted, and is it proven?

    python benchmarks/target_pairs.py [--flax4 PYTHON] [--maxtext PYTHON] [NAME...]

The packages are no dependencies; what cannot be imported is said to be so, and the others run:

    pip install --no-deps --target EXTRA torchvision==0.24.1 jax-resnet==0.0.4 flaxmodels==0.1.3 h5py timm \
        einops ml_collections diffusers==0.35.2 dm-haiku==0.0.17 jmp tabulate equinox==0.13.8 jaxtyping \
        wadler_lindig gemma==3.3.0 kauldron clu lark typeguard immutabledict sentencepiece chex toolz
    git clone https://github.com/google-research/vision_transformer, …/big_vision, https://github.com/jax-ml/bonsai,
        https://github.com/NVlabs/stylegan2-ada-pytorch
    PYTHONPATH=EXTRA:vision_transformer:big_vision:bonsai:stylegan2-ada-pytorch \
        python benchmarks/target_pairs.py

`--flax4` names the interpreter of an environment with transformers 4, as `make test-flax4` makes one;
`--maxtext` that of one with MaxText's packages (target_models/maxtext_models.py). Weights
are those of the factories, with noise on them. The seconds are of processors: both models loaded and run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from migrate.parity.run.fitted import Models, fit_models
from migrate.progress import no_progress

HERE = Path(__file__).parent / "target_models"
sys.path.insert(0, str(HERE))

from transformers4 import TYPES  # noqa: E402

IMAGE = "x=float32[2,3,64,64]"
SMALL = "x=float32[2,3,32,32]"
_RESNETS = (
    ("resnet18", "ResNet18"),
    ("resnet34", "ResNet34"),
    ("resnet50", "ResNet50"),
    ("resnet101", "ResNet101"),
    ("wide_resnet50_2", "WideResNet50"),
    ("resnext50_32x4d", "ResNeXt50"),
    ("resnext101_32x8d", "ResNeXt101"),
)
_LOGITS = "pretrained=None, output='logits', normalize=False"
_FLAXMODELS = (
    ("resnet18", "ResNet18", _LOGITS),
    ("resnet34", "ResNet34", _LOGITS),
    ("resnet50", "ResNet50", _LOGITS),
    ("resnet50", "ResNet50", "pretrained=None, output='logits'"),
    ("vgg16", "VGG16", _LOGITS),
    ("vgg19", "VGG19", _LOGITS),
)


@dataclass(frozen=True)
class Public:
    """A pair.

    Attributes:
        name: how it is called here.
        torch, flax: what both are called.
        inputs: an input.
        apply: of a pair of functions the one that runs.
        channels_last: inputs that JAX's side takes so, where torch's layers do not say it.
        drop: what it has no use for.
        of: the environment that JAX's side runs in ("flax4", "maxtext"); "": this one.
    """

    name: str
    torch: str
    flax: str
    inputs: tuple[str, ...]
    apply: str | None = None
    channels_last: tuple[str, ...] | None = None
    drop: tuple[str, ...] = field(default=())
    of: str = ""


def _ours(name: str) -> str:
    return f"{HERE / 'torch_models.py'}:{name}"


def _theirs(name: str) -> str:
    return f"{HERE / 'jax_models.py'}:{name}"


def _pair(name: str, torch: str, flax: str, *inputs: str, **how: object) -> Public:
    return Public(name, _ours(torch), _theirs(flax), inputs, **how)  # type: ignore[arg-type]


def pairs() -> Iterator[Public]:
    """All of them."""
    for a, b in _RESNETS:
        yield Public(f"jax-resnet {b}", f"torchvision.models:{a}", f"jax_resnet:{b}", (IMAGE,))
    for a, b, how in _FLAXMODELS:
        image = IMAGE if "vgg" not in a else "x=float32[2,3,224,224]"
        normalized = "" if "normalize" in how else ", normalizing"
        name = f"flaxmodels {b}{normalized}"
        yield Public(name, f"torchvision.models:{a}", f"flaxmodels:{b}({how})", (image,))
    yield _pair("vit_jax ViT, torchvision", "vision_vit", "vit_jax", SMALL)
    yield _pair("vit_jax ViT, timm", "timm_vit", "vit_jax_wide", SMALL)
    yield _pair("vit_jax Mixer, timm", "timm_mixer", "vit_jax_mixer", SMALL)
    apart = "timm_vit(apart=True)"
    yield _pair("big_vision ViT, timm", apart, "big_vision_vit", SMALL)
    scanned = "big_vision_vit('tok', True)"
    yield _pair("big_vision ViT scanned, timm", apart, scanned, SMALL)
    yield _pair("big_vision SigLIP, timm", "timm_vit('map')", "big_vision_vit('map')", SMALL)
    yield _pair("big_vision Mixer, timm", "timm_mixer", "big_vision_mixer", SMALL)
    yield _pair("big_vision BiT, timm", "bit_resnet", "big_vision_bit", IMAGE)
    yield Public(
        "bonsai ResNet-50 (nnx)", "torchvision.models:resnet50", _theirs("bonsai_resnet"), (IMAGE,)
    )
    yield _pair("bonsai ViT (nnx)", "hf_vit", "bonsai_vit", "pixel_values=float32[2,3,32,32]")
    for name, of in (("ConvNeXt", "convnext"), ("ConvNeXt, its own epsilon", "convnext_own")):
        yield _pair(f"bonsai {name} (nnx)", "vision_convnext", f"bonsai_{of}", SMALL)
    yield _pair("bonsai DenseNet (nnx)", "vision_densenet", "bonsai_densenet", IMAGE)
    words = "input_ids=int32[2,7]<31"
    yield _pair("flaxmodels GPT-2", "hf_gpt2", "flaxmodels_gpt2", words)
    noise = "z=float32[2,8]"
    its = {"drop": ("resample_filter",)}
    yield _pair("flaxmodels StyleGAN2", "stylegan2", "flaxmodels_stylegan2", noise, **its)
    yield _pair("gemma Gemma 3", "hf_gemma3", "gemma3", _ours("tokens"))
    denoised = (
        "sample=float32[2,4,8,8]",
        "timestep=int32[2]<1000",
        "encoder_hidden_states=float32[2,5,16]",
    )
    first: dict[str, object] = {"channels_last": ()}
    yield _pair("diffusers UNet", "diffusers_unet", "diffusers_unet", *denoised, **first)
    image = "sample=float32[2,3,16,16]"
    yield _pair("diffusers AutoencoderKL", "diffusers_vae", "diffusers_vae", image, **first)
    row, square = "input=float32[4,6]", "input=float32[2,3,6,6]"
    for name, params, apply, inputs, how in (
        ("mlp", "haiku_mlp_params", "haiku_mlp", row, {}),
        ("mlp", "equinox_mlp_params", "vmapped", row, {}),
        ("convolutions", "equinox_convolutions_params", "vmapped", square, first),
    ):
        called = f"{params.partition('_')[0]} {name}"
        yield _pair(called, name, params, inputs, apply=_theirs(apply), **how)
    yield Public(
        "haiku ResNet18",
        "torchvision.models:resnet18",
        _theirs("haiku_resnet_params"),
        ("x=float32[2,3,64,64]",),
        apply=_theirs("haiku_resnet"),
    )
    words = "input_ids=int32[2,7]<32"
    for name, ours, its in (
        ("Llama", "hf_llama", "llama"),
        ("Llama, blocks apart", "hf_llama", "llama_apart"),
        ("Mixtral", "hf_mixtral", "mixtral"),
    ):
        model = f"{HERE / 'maxtext_models.py'}:{its}"
        yield Public(
            f"MaxText {name}", _ours(ours), f"{model}_params", (words,), model, of="maxtext"
        )
    for name, one in TYPES.items():
        file = HERE / "transformers4.py"
        given = tuple(one.inputs.split("; "))
        both = f"{file}:ours({name!r})", f"{file}:theirs({name!r})"
        yield Public(f"transformers 4 {name}", *both, given, drop=one.drop, of="flax4")


def main() -> None:
    """Print a line for each pair."""
    parser = argparse.ArgumentParser()
    for environment in ("flax4", "maxtext"):
        parser.add_argument(f"--{environment}")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    for pair in pairs():
        if given.names and not any(name in pair.name for name in given.names):
            continue
        python = vars(given)[pair.of] if pair.of else sys.executable
        if python is None:
            continue
        before = _seconds()
        said = _said(pair, python)
        print(f"{pair.name} | {_seconds() - before:.0f} | {said}", flush=True)


def _said(pair: Public, python: str) -> str:
    models = Models(
        pair.torch, pair.flax, pair.inputs, pair.drop, pair.apply, python, pair.channels_last
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = fit_models(models, Path(folder) / "mapping.yaml", no_progress)
        except Exception as error:  # a row of the table, whatever it is
            return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return f"{found.layers} | {found.passes} | {found.sentence}"


def _seconds() -> float:
    of = (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
    used = [resource.getrusage(one) for one in of]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
