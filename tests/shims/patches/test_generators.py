"""A generator of a CUDA device, where there is none."""

from __future__ import annotations

import torch

from shims.patches.devices import Devices, HostPlacement
from shims.patches.rng import HostGenerators, patches


def made_here() -> type[torch.Generator]:
    devices = Devices(2, HostPlacement())
    (found,) = [
        one.replacement
        for one in patches(devices, HostGenerators(devices))
        if one.attribute == "Generator"
    ]
    assert issubclass(found, torch.Generator)
    return found


def test_a_generator_of_a_cuda_device_is_one_of_the_host() -> None:
    generator = made_here()
    for device in ("cuda", "cuda:1", torch.device("cuda", 0), 1):
        made = generator(device).manual_seed(3)
        drawn = torch.rand(4, generator=made)
        assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert generator().device.type == generator("cpu").device.type == "cpu"


def test_every_generator_is_an_instance_of_it() -> None:
    generator = made_here()
    assert isinstance(torch.default_generator, generator)
    assert isinstance(generator(device="cuda"), torch.Generator)
    assert not isinstance(torch.ones(1), generator)
