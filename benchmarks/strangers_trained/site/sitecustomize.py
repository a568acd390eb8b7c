"""Run at the start of each process of a project: a model of it that is small, where no argument makes one.

Nothing here changes how a project trains. `STRANGERS_PROJECT` names the project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from shims.activate import after_import


def _dit() -> None:
    import models

    def tiny(**kwargs: Any) -> Any:
        return models.DiT(depth=2, hidden_size=32, patch_size=8, num_heads=2, **kwargs)

    models.DiT_models["DiT-T/8"] = tiny


def _mae() -> None:
    import models_mae

    def tiny(**kwargs: Any) -> Any:
        return models_mae.MaskedAutoencoderViT(
            img_size=64,
            patch_size=16,
            embed_dim=32,
            depth=2,
            num_heads=2,
            decoder_embed_dim=32,
            decoder_depth=1,
            decoder_num_heads=2,
            **kwargs,
        )

    models_mae.mae_tiny = tiny


def _var() -> None:
    import models

    build = models.build_vae_var

    def small(**kwargs: Any) -> Any:
        return build(**{**kwargs, "V": 32, "Cvae": 8, "ch": 32})

    models.build_vae_var = small


def _detr_images() -> None:
    transforms: Any = sys.modules["datasets.transforms"]
    resize = transforms.resize

    def small(image: Any, target: Any, size: Any, max_size: Any = None) -> Any:
        return resize(image, target, (64, 64))

    transforms.resize = small
    # The crop is of hundreds of pixels, and leaves boxes out: as many shapes, as many compilations.
    transforms.RandomSizeCrop.__call__ = lambda self, image, target: (image, target)


def _not_downloaded() -> None:
    from torchvision.models import resnet

    def resnet18(**kwargs: Any) -> Any:
        kwargs.pop("pretrained", None)
        return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], **kwargs)

    import torchvision.models

    torchvision.models.resnet18 = resnet18


def _stft_of_torch_1() -> None:
    import torch

    stft = torch.stft

    def real(*args: Any, **kwargs: Any) -> Any:
        return torch.view_as_real(stft(*args, **kwargs, return_complex=True))

    torch.stft = real


def _narrow_discriminators() -> None:
    import models

    for discriminator in (models.DiscriminatorP, models.DiscriminatorS):
        _narrow(models, discriminator)


def _narrow(models: Any, discriminator: Any) -> None:
    """Let the convolutions that `discriminator` makes have an eighth of the channels."""
    initialize = discriminator.__init__

    def narrowed(convolution: Any) -> Callable[..., Any]:
        def make(inputs: int, outputs: int, *args: Any, **kwargs: Any) -> Any:
            channels = (count if count == 1 else count // 8 for count in (inputs, outputs))
            return convolution(*channels, *args, **kwargs)

        return make

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        whole = models.Conv1d, models.Conv2d
        models.Conv1d, models.Conv2d = map(narrowed, whole)
        try:
            initialize(self, *args, **kwargs)
        finally:
            models.Conv1d, models.Conv2d = whole

    discriminator.__init__ = init


def _numpy_1() -> None:
    import numpy

    numpy.float = float


class _StandIns(MetaPathFinder):
    """Finds the stand-ins for modules below torch: of a package that is not here, of what is gone."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return where the stand-in is."""
        file = {"torch.utils.tensorboard": "summary_writer.py", "torch._six": "torch_six.py"}.get(
            name
        )
        return spec_from_file_location(name, Path(__file__).with_name(file)) if file else None


SMALLER: dict[str, tuple[tuple[str, Callable[[], None]], ...]] = {
    "DiT": (("models", _dit),),
    "mae": (("models_mae", _mae), ("numpy", _numpy_1)),
    "hifi-gan": (("torch", _stft_of_torch_1), ("models", _narrow_discriminators)),
    "detr": (("datasets.transforms", _detr_images), ("torchvision", _not_downloaded)),
    "VAR": (("models", _var),),
}

if os.environ.get("STRANGERS_PROJECT"):
    sys.meta_path.insert(0, _StandIns())
for _module, _make_smaller in SMALLER.get(os.environ.get("STRANGERS_PROJECT", ""), ()):
    after_import(_module, _make_smaller)
