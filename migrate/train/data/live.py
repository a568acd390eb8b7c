"""Record of a DataLoader of the running script; called in the script's process."""

from __future__ import annotations

from typing import Any

from migrate.train.data.recorded import Order, RecordedLoader, RecordedSampler

_ORDERS: dict[str, Order] = {
    "torch.utils.data.sampler.SequentialSampler": "sequential",
    "torch.utils.data.sampler.RandomSampler": "random",
    "torch.utils.data.distributed.DistributedSampler": "distributed",
}


def recorded_loader(
    loader: Any,
    *,
    seeds: tuple[int, ...] = (),
    epochs: tuple[int, ...] = (),
    file: str = "train.py",
    line: int = 0,
) -> RecordedLoader:
    """Return what a DataLoader is made of.

    Args:
        loader: a `torch.utils.data.DataLoader`, before its first iteration.
        seeds: seed that its RandomSampler drew in each recorded epoch (the argument of the
            `Generator.manual_seed` that it calls).
        epochs: epoch of its DistributedSampler in each recorded epoch.
        file: the script, as messages name it.
        line: line of the script that creates it.
    """
    from torch.utils.data import BatchSampler, IterableDataset

    iterable = isinstance(loader.dataset, IterableDataset)
    batch_sampler = loader.batch_sampler
    foreign = batch_sampler is not None and type(batch_sampler) is not BatchSampler
    sampler = getattr(batch_sampler, "sampler", loader.sampler)
    described = _sampler(sampler, None if iterable else _size(loader.dataset), epochs)
    generator = getattr(sampler, "generator", None)
    drawn = generator is not None and _has_drawn(generator)
    collate = loader.collate_fn
    return RecordedLoader(
        described,
        getattr(batch_sampler, "batch_size", None),
        bool(getattr(batch_sampler, "drop_last", False)),
        loader.num_workers,
        iterable,
        _name(type(batch_sampler)) if foreign else "",
        None if generator is None or drawn else int(generator.initial_seed()),
        generator is not None and loader.generator is generator,
        seeds,
        "" if _is_default(collate, batches=batch_sampler is not None) else _name(collate),
        drawn,
        file=file,
        line=line,
    )


def _sampler(sampler: Any, size: int | None, epochs: tuple[int, ...]) -> RecordedSampler:
    name = _name(type(sampler))
    order = _ORDERS.get(name, "other")
    return RecordedSampler(
        order,
        name,
        size,
        shuffle=order == "random" or bool(getattr(sampler, "shuffle", False)),
        replacement=bool(getattr(sampler, "replacement", False)),
        samples=getattr(sampler, "_num_samples", None),
        seed=int(getattr(sampler, "seed", 0)) if order == "distributed" else 0,
        drop_last=bool(getattr(sampler, "drop_last", False)),
        replicas=int(getattr(sampler, "num_replicas", 1)),
        epochs=epochs,
    )


def _is_default(collate: Any, *, batches: bool) -> bool:
    from torch.utils.data import default_collate, default_convert

    return collate is (default_collate if batches else default_convert)


def _has_drawn(generator: Any) -> bool:
    """Whether a generator is in another state than the one after its seed."""
    import torch

    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return not torch.equal(fresh.get_state(), generator.get_state())


def _size(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _name(value: Any) -> str:
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
