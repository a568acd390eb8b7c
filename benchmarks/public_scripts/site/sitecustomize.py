"""Data sets that public scripts would download, replaced by random ones of the same form."""

from __future__ import annotations

from shims.activate import after_import

SAMPLES = 32


def _replace() -> None:
    import torchvision.datasets as datasets

    def fake(size: tuple[int, int, int], classes: int):  # type: ignore[no-untyped-def]
        class Fake(datasets.FakeData):
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

        return Fake

    datasets.CIFAR10 = fake((3, 32, 32), 10)
    datasets.CIFAR100 = fake((3, 32, 32), 100)
    datasets.MNIST = fake((1, 28, 28), 10)


after_import("torchvision", _replace)
