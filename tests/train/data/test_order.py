"""Order of examples: torch's samplers against the NumPy that written programs carry."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from migrate.train.data.program.order import (
    Distributed,
    Generator,
    Sequential,
    SharedGenerator,
    Shuffled,
    batched,
    epoch_batches,
    randperm,
)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 100, 624, 625, 5000, 60_000])
@pytest.mark.parametrize("seed", [0, 1, 1337, 2**32 - 1, 2**32 + 5, 2**62 + 12345])
def test_randperm(size, seed):
    expected = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    assert randperm(size, Generator(seed)).tolist() == expected.tolist()


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 101])
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_distributed_sampler(size, replicas, shuffle, drop_last):
    order = Distributed(size, replicas, shuffle, 7, drop_last)
    for replica in range(replicas):
        sampler = DistributedSampler(
            range(size), replicas, replica, shuffle, seed=7, drop_last=drop_last
        )
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            assert order.indices(epoch, replica).tolist() == list(sampler)


def test_distributed_sampler_whose_epoch_never_changes():
    order = Distributed(10, 2, fixed_epoch=0)
    assert order.indices(5, 1).tolist() == list(DistributedSampler(range(10), 2, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_shuffle_of_a_loader_by_the_seeds_it_drew(workers):
    torch.manual_seed(11)
    # A fork of a process with JAX is a warning.
    context = "forkserver" if workers else None
    loader = DataLoader(range(23), 4, True, num_workers=workers, multiprocessing_context=context)
    epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
    torch.manual_seed(11)
    seeds = []
    for _ in range(3):
        torch.empty((), dtype=torch.int64).random_()  # the loader's own
        seeds.append(int(torch.empty((), dtype=torch.int64).random_()))
    order = Shuffled(23, tuple(seeds))
    for epoch, batches in enumerate(epochs):
        assert [b.tolist() for b in batched(order.indices(epoch), 4)] == batches


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("size", [20, 23])
def test_generator_that_loader_and_sampler_share(size, drop_last):
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(range(size), 4, shuffle=True, generator=generator, drop_last=drop_last)
    order = SharedGenerator(size, 5)
    for epoch in range(3):
        ours = batched(order.indices(epoch), 4, drop_last=drop_last)
        assert [b.tolist() for b in ours] == [batch.tolist() for batch in loader]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("samples", [None, 7, 41, 64])
def test_generator_of_the_sampler_alone(replacement, samples):
    generator = torch.Generator().manual_seed(9)
    sampler = RandomSampler(range(20), replacement, samples, generator)
    order = SharedGenerator(20, 9, False, samples, replacement)
    for epoch in range(3):
        assert order.indices(epoch).tolist() == list(sampler)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("size", [0, 3, 8, 9])
def test_batch_sampler(size, drop_last):
    expected = list(BatchSampler(SequentialSampler(range(size)), 4, drop_last))
    ours = batched(Sequential(size).indices(0), 4, drop_last=drop_last)
    assert [b.tolist() for b in ours] == expected


def test_batches_of_all_replicas():
    steps = epoch_batches(Distributed(10, 2, shuffle=False), 0, 3, replicas=(0, 1))
    assert [[b.tolist() for b in step] for step in steps] == [
        [[0, 2, 4], [1, 3, 5]],
        [[6, 8], [7, 9]],
    ]


def test_more_examples_than_torch_shuffles_by_32_bits_are_refused():
    with pytest.raises(ValueError, match="by other numbers"):
        randperm(2**31, Generator(0))
    assert randperm(5, Generator(0)).dtype == np.int64
