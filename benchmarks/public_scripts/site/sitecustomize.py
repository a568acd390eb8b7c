"""Run at the start of each process of a public script: data sets and models, made small, and a record.

The record is a line for each optimizer step, with the rank and a sum over the weights before the step.
PUBLIC_SCRIPTS_FLOAT64=1 makes float64 the default dtype: whether two runs part by rounding alone.
"""

from __future__ import annotations

import json
import os
from typing import Any

from shims.activate import after_import

SAMPLES = int(os.environ.get("PUBLIC_SCRIPTS_SAMPLES", "32"))
WORKERS = os.environ.get("PUBLIC_SCRIPTS_WORKERS", "")
DEVICES = os.environ.get("PUBLIC_SCRIPTS_DEVICES", "")


def _small_data() -> None:
    import torchvision.datasets as datasets

    def fake(name: str, size: tuple[int, int, int], classes: int) -> None:
        class Fake(datasets.FakeData):  # type: ignore[misc]
            def __init__(self, *args: object, **kwargs: object) -> None:
                mode = "L" if size[0] == 1 else "RGB"
                transform = kwargs.get("transform")
                super().__init__(SAMPLES, size, classes, transform)
                self._mode = mode

            def __getitem__(self, index: int) -> tuple[object, int]:
                transform, self.transform = self.transform, None
                try:
                    image, label = super().__getitem__(index)
                finally:
                    self.transform = transform
                image = image.convert(self._mode)
                return (transform(image) if transform else image), int(label)

        # Where a worker process of a DataLoader, which has them too, looks for them.
        Fake.__module__, Fake.__qualname__ = datasets.__name__, name
        setattr(datasets, name, Fake)

    fake("CIFAR10", (3, 32, 32), 10)
    fake("CIFAR100", (3, 32, 32), 100)
    fake("MNIST", (1, 28, 28), 10)


def _operators_of_torchvision() -> None:
    """Declare the operators that torchvision asks for: its wheel needs a torch with CUDA."""
    import torch

    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def _small_resnet() -> None:
    """A `resnet50` of one block a stage; its features stay 2048 wide, as the scripts write that."""
    import torchvision.models as models
    from torchvision.models.resnet import Bottleneck, ResNet

    def resnet50(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("weights", None)
        kwargs.pop("pretrained", None)
        return ResNet(Bottleneck, [1, 1, 1, 1], width_per_group=8, **kwargs)

    models.resnet50 = resnet50


def _few_workers() -> None:
    """Worker processes of a DataLoader: each imports torch, and on XLA the script too, for a few images."""
    from torch.utils.data import DataLoader

    make = DataLoader.__init__

    def made(self: Any, *args: Any, num_workers: int = 0, **kwargs: Any) -> None:
        make(self, *args, num_workers=min(num_workers, int(WORKERS)), **kwargs)

    DataLoader.__init__ = made


def _small_autoencoder() -> None:
    """An AutoencoderKL of Stable Diffusion's form, narrow and random, in place of one that is downloaded."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    def from_pretrained(cls: Any, *args: object, **kwargs: object) -> Any:
        blocks = {f"{way}_block_types": [f"{name}Block2D"] * 4 for way, name in _WAYS}
        return cls(
            **blocks,
            block_out_channels=[8] * 4,
            layers_per_block=1,
            norm_num_groups=4,
            latent_channels=4,
        ).eval()

    AutoencoderKL.from_pretrained = classmethod(from_pretrained)


_WAYS = (("down", "DownEncoder"), ("up", "UpDecoder"))


def _several_devices() -> None:
    """Count several GPUs, for a script that ends where there is one; each of its ranks has one anyway."""
    import torch

    torch.accelerator.device_count = lambda: int(DEVICES)


def _float64() -> None:
    import torch

    torch.set_default_dtype(torch.float64)


def _unbiased_variances() -> None:
    """Let batch norm keep torch's running variance on XLA, where torch_xla 2.9 divides by n, not n - 1."""
    import torch

    from migrate.prove.record.variances import corrected

    functional = torch.nn.functional
    functional.batch_norm = corrected(
        functional.batch_norm, lambda device: device.type == "xla", lambda count: count - 1
    )


def _no_hub() -> None:
    import torch

    torch.hub.list = lambda *args, **kwargs: []


def _record() -> None:
    import torch
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    folder = os.environ["PUBLIC_SCRIPTS_RECORDS"]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        with torch.no_grad():
            weights = sum(
                float(weight.detach().cpu().double().abs().sum())
                for group in optimizer.param_groups
                for weight in group["params"]
            )
        with open(os.path.join(folder, f"{os.getpid()}.jsonl"), "a") as file:
            file.write(json.dumps({"rank": rank, "weights": weights}) + "\n")

    register_optimizer_step_pre_hook(before)


if os.environ.get("PUBLIC_SCRIPTS_SAMPLES"):
    after_import("torchvision", _small_data)
    if os.environ.get("PUBLIC_SCRIPTS_SMALL_RESNET"):
        after_import("torchvision", _small_resnet)
    after_import("torch", _no_hub)
    if os.environ.get("PUBLIC_SCRIPTS_UNBIASED"):
        after_import("torch", _unbiased_variances)
    after_import("torch", _operators_of_torchvision)
    if WORKERS:
        after_import("torch", _few_workers)
    after_import("diffusers.models.autoencoders.autoencoder_kl", _small_autoencoder)
    if DEVICES:  # after the CUDA emulation that is installed when torch is imported
        after_import("hydra", _several_devices)
    if os.environ.get("PUBLIC_SCRIPTS_FLOAT64"):
        after_import("torch", _float64)
if os.environ.get("PUBLIC_SCRIPTS_RECORDS"):
    after_import("torch", _record)
