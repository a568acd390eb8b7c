"""Public Flax models and the torch models that they are ports of: are the weights fitted, and is it proven?

    python benchmarks/target_pairs.py [NAME...]

Needs torchvision, jax-resnet and flaxmodels, which are no dependencies:

    pip install --no-deps --target EXTRA torchvision==0.24.1 jax-resnet==0.0.4 flaxmodels==0.1.3 h5py
    PYTHONPATH=EXTRA python benchmarks/target_pairs.py

The peer is the fit by names, on the same pair. Each pair has the weights of its factory, with noise on them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from converters.errors import ConversionError
from migrate.errors import MigrateError
from migrate.parity.run.fitted import Models, fit_models

IMAGE = "x=float32[2,3,64,64]"
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
    """A pair: what both are called, and an input."""

    torch: str
    flax: str
    inputs: str


PAIRS = (
    *(Public(f"torchvision.models:{a}", f"jax_resnet:{b}", IMAGE) for a, b in _RESNETS),
    *(
        Public(
            f"torchvision.models:{a}",
            f"flaxmodels:{b}({how})",
            IMAGE if "vgg" not in a else "x=float32[2,3,224,224]",
        )
        for a, b, how in _FLAXMODELS
    ),
)


def main(wanted: list[str]) -> None:
    """Print a line for each pair."""
    for pair in PAIRS:
        if wanted and not any(name in f"{pair.torch} {pair.flax}" for name in wanted):
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            mapping = Path(folder) / "mapping.yaml"
            models = Models(pair.torch, pair.flax, (pair.inputs,))
            try:
                found = fit_models(models, mapping, lambda _: None)
                said = f"{found.layers} layers, {found.passes} passes: {found.sentence}"
            except (MigrateError, ConversionError) as error:
                said = str(error)[:300]
        seconds = time.perf_counter() - start
        print(f"{pair.torch} → {pair.flax}: {seconds:.0f} s, {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
