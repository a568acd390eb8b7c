"""On GPUs too a proof draws on the host: what seeds CUDA seeds that generator."""

from __future__ import annotations

import pytest
import torch

from migrate.prove.record import cuda_seeds
from migrate.prove.record.draws import DeviceGenerator

NAMES = (
    "manual_seed",
    "manual_seed_all",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> DeviceGenerator:
    for module in (torch.cuda, torch.cuda.random):
        for name in NAMES:
            monkeypatch.setattr(module, name, getattr(module, name))
    made = DeviceGenerator()
    cuda_seeds.follow(made)
    return made


@pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all"])
def test_what_seeds_the_gpus_seeds_the_draws(generator: DeviceGenerator, name: str) -> None:
    getattr(torch.cuda, name)(11)
    state = torch.cuda.get_rng_state()
    assert torch.equal(state, torch.Generator().manual_seed(11).get_state())


def test_a_state_that_was_kept_comes_back(generator: DeviceGenerator) -> None:
    torch.cuda.manual_seed(3)
    kept = torch.cuda.random.get_rng_state()
    torch.cuda.manual_seed(4)
    torch.cuda.set_rng_state(kept, "cuda:0")
    assert torch.equal(torch.cuda.get_rng_state(), kept)
    torch.cuda.manual_seed(4)
    torch.cuda.random.set_rng_state_all([kept])
    assert torch.equal(torch.cuda.get_rng_state(), kept)


def test_a_generator_of_the_host_is_itself() -> None:
    generator = torch.Generator()
    assert cuda_seeds.on_the_host(generator) is generator


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_a_generator_of_a_gpu_has_a_twin_with_its_seed() -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    twin = cuda_seeds.on_the_host(generator)
    assert twin.device.type == "cpu"
    drawn = torch.randn(3, generator=twin)
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(5)))
    assert cuda_seeds.on_the_host(generator) is twin
    generator.manual_seed(6)
    assert cuda_seeds.on_the_host(generator).initial_seed() == 6
