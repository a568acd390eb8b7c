"""Data with timm's interface: the transforms of torchvision, and no mixing."""

from __future__ import annotations

from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

__all__ = ["IMAGENET_DEFAULT_MEAN", "IMAGENET_DEFAULT_STD", "Mixup", "create_transform"]


class Mixup:
    """Mixes each image with that at the other end of its batch, and the labels as much."""

    def __init__(
        self, label_smoothing: float = 0.0, num_classes: int = 1000, **ignored: Any
    ) -> None:
        """A fixed share of 0.8."""
        self.num_classes, self.smoothing, self.share = num_classes, label_smoothing, 0.8

    def __call__(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return mixed images and labels."""
        from torch.nn.functional import one_hot

        mixed = images * self.share + images.flip(0) * (1 - self.share)
        off = self.smoothing / self.num_classes
        hot = one_hot(labels, self.num_classes).to(images.dtype) * (1 - self.smoothing) + off
        return mixed, hot * self.share + hot.flip(0) * (1 - self.share)


def create_transform(input_size: Any, is_training: bool = False, **ignored: Any) -> Any:
    """Return a crop, a flip while training, and the normalization."""
    from torchvision import transforms

    flip = [transforms.RandomHorizontalFlip()] if is_training else []
    crop = transforms.RandomResizedCrop if is_training else transforms.Resize
    size = input_size if isinstance(input_size, int) else input_size[-1]
    last = [
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD),
    ]
    return transforms.Compose([crop((size, size)), *flip, *last])
