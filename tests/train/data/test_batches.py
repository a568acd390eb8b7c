"""Batches of written programs: the DataLoader's own, resumed exactly, padded only where that is proven."""

import importlib.util

import jax
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler

from migrate.train.data.live import recorded_loader
from migrate.train.data.padding import PaddingRule, is_neutral, padding_rule
from migrate.train.data.program.batches import Batches, ScriptBatches, default_collate, to_numpy
from migrate.train.data.program.buckets import Buckets
from migrate.train.data.program.order import Distributed, Shuffled
from migrate.train.data.write import write_data
from migrate.train.errors import TrainError
from tests.train.data.datasets import Pairs, Sentences, collate

GRAIN = pytest.param(
    "grain",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("grain") is None, reason="grain is not installed"
    ),
)


def torchs(loader):
    return [to_numpy(batch) for batch in loader]


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@pytest.mark.parametrize("loader", [GRAIN, "torch"])
def test_epochs_of_a_shuffled_loader(loader):
    data = Sentences()
    torch.manual_seed(3)
    theirs = DataLoader(data, 4, shuffle=True, collate_fn=collate)
    epochs = [torchs(theirs), torchs(theirs)]
    torch.manual_seed(3)
    draws = [int(torch.empty((), dtype=torch.int64).random_()) for _ in range(4)]
    ours = Batches(data, Shuffled(23, tuple(draws[1::2])), 4, collate_fn=collate, loader=loader)
    for epoch in epochs:
        same(list(ours.epoch()), epoch)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("loader", [GRAIN, "torch"])
def test_position_is_restored_exactly(loader, workers):
    jax.block_until_ready(jax.numpy.ones(3))  # a fork would warn of JAX's threads

    def made():
        order = Distributed(23, 1, seed=1)
        return Batches(Sentences(), order, 4, collate_fn=collate, workers=workers, loader=loader)

    ours = iter(whole := made())
    expected = [next(ours) for _ in range(15)]
    assert whole.position == {"epoch": 2, "step": 3}
    for stop in (4, 6) if workers else (0, 4, 6, 11):
        first = made()
        running = iter(first)
        for _ in range(stop):
            next(running)
        resumed = made()
        resumed.restore(first.position)
        again = iter(resumed)
        same([next(again) for _ in range(15 - stop)], expected[stop:])


def test_batches_of_two_replicas_have_an_axis_of_replicas():
    data = Pairs()
    ours = Batches(data, Distributed(10, 2, seed=4), 2, replicas=(0, 1), loader="torch")
    first, labels = next(iter(ours))
    assert first.shape == (2, 2, 2)
    for replica in (0, 1):
        sampler = DistributedSampler(data, 2, replica, seed=4)
        images, targets = next(iter(DataLoader(data, 2, sampler=sampler)))
        assert np.array_equal(first[replica], images)
        assert np.array_equal(labels["label"][replica], targets["label"])


def test_default_collate_is_torchs():
    examples = [Pairs()[i] for i in range(3)]
    ours = default_collate(examples)
    theirs = to_numpy(torch.utils.data.default_collate(examples))
    assert np.array_equal(ours[0], theirs[0])
    assert ours[1]["name"] == theirs[1]["name"]
    assert ours[1]["label"].dtype == theirs[1]["label"].dtype == np.int64
    with pytest.raises(TypeError, match="a batch of object is unknown"):
        default_collate([object()])


def test_ragged_replicas_are_refused_without_padding():
    ours = Batches(
        Sentences(),
        Distributed(23, 2, shuffle=False),
        2,
        collate_fn=collate,
        replicas=(0, 1),
        loader="torch",
    )
    with pytest.raises(ValueError, match="pad them to one length"):
        list(ours.epoch())


def batches_of_sentences():
    return torchs(DataLoader(Sentences(), 4, collate_fn=collate))


def loss_of(batch, *, counted=True):
    logits = torch.sin(torch.arange(51.0)[None, None] * torch.tensor(batch["ids"])[..., None])
    labels = torch.tensor(batch["labels"] if counted else batch["ids"])
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def test_padding_is_read_from_values_and_proven_by_the_loss():
    batches = batches_of_sentences()
    batches = [{**b, "ids": np.minimum(b["ids"], 50)} for b in batches]
    batches = [{**b, "labels": np.minimum(b["labels"], 50)} for b in batches]
    rule = padding_rule(batches)
    assert rule == PaddingRule({"ids": 50.0, "mask": 0.0, "labels": -100.0}, left=False)
    assert is_neutral(loss_of, batches, rule)
    assert not is_neutral(lambda batch: loss_of(batch, counted=False), batches, rule)


def test_no_rule_without_a_mask_or_with_several_fillers():
    batches = batches_of_sentences()
    assert padding_rule([{"ids": b["ids"]} for b in batches]) is None
    noisy = [{**b, "ids": b["ids"] + np.arange(b["ids"].shape[1])} for b in batches]
    assert padding_rule(noisy) is None


def test_left_padding_is_seen():
    batches = [{k: v[:, ::-1].copy() for k, v in b.items()} for b in batches_of_sentences()]
    rule = padding_rule(batches)
    assert rule is not None
    assert rule.left


def test_buckets_leave_few_lengths_and_the_loss():
    batches = batches_of_sentences()
    buckets = Buckets({"ids": 50, "mask": 0, "labels": -100}, step=6)
    assert len({b["ids"].shape[1] for b in batches}) > 2
    assert {buckets.pad(b)["ids"].shape[1] for b in batches} == {6, 12}
    with pytest.raises(ValueError, match="more than 4"):
        Buckets({"ids": 50}, longest=4).pad(batches[0])


def written(loader, loading="torch", **options):
    return write_data(recorded_loader(loader, file="train.py", line=31, **options), loading)


def test_written_module_loads_the_scripts_batches(tmp_path, monkeypatch):
    data = Sentences()
    generator = torch.Generator().manual_seed(8)
    loader = DataLoader(data, 4, shuffle=True, generator=generator, collate_fn=collate)
    files = written(loader).files
    assert "SharedGenerator(23, 8)" in files["data.py"]
    for name, source in files.items():
        assert "migrate" not in source
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("written_data", tmp_path / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    same(list(module.batches(data, collate).epoch()), torchs(loader))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_orders_of_the_scripts_own_are_refused_by_grain_and_kept_by_torch():
    weighted = WeightedRandomSampler([1.0] * 10, 10)
    for loader, words in (
        (DataLoader(Stream(), 4), "train.py:31: an IterableDataset"),
        (DataLoader(Pairs(), 4, sampler=weighted), "train.py:31: the sampler torch"),
        (DataLoader(Pairs(), batch_sampler=[[0, 1]]), "train.py:31: the batch sampler"),
        (DataLoader(Pairs(), 4, shuffle=True), "train.py:31: the seeds of its shuffle"),
    ):
        with pytest.raises(TrainError, match=words):
            written(loader, "grain")
        assert written(loader).by_script


def test_loader_that_never_sets_its_epoch():
    sampler = DistributedSampler(Pairs(), 2, 0, seed=3, drop_last=True)
    data = written(DataLoader(Pairs(), 4, sampler=sampler, drop_last=True), epochs=(0, 0))
    assert "Distributed(10, 2, seed=3, drop_last=True, fixed_epoch=0)" in data.files["data.py"]
    assert "drop_last=True,\n    )" in data.files["data.py"]
    assert any("never calls set_epoch" in note for note in data.notes)


def test_scripts_own_loader_continues_at_a_position():
    loader = DataLoader(Stream(), 4)
    ours = ScriptBatches(loader)
    running = iter(ours)
    expected = [next(running).tolist() for _ in range(5)]
    assert expected[3] == [0, 1, 2, 3]
    resumed = ScriptBatches(loader)
    resumed.restore({"epoch": 1, "step": 1})
    assert next(iter(resumed)).tolist() == expected[4]


def test_generator_that_was_drawn_from_is_unknown():
    generator = torch.Generator().manual_seed(8)
    torch.rand(3, generator=generator)
    loader = DataLoader(Pairs(), 4, shuffle=True, generator=generator)
    with pytest.raises(TrainError, match="its generator has been drawn from"):
        written(loader, "grain")
    assert written(loader).by_script


@pytest.mark.parametrize("epochs", [(), (0,), (3, 4), (0, 2)])
def test_epochs_that_do_not_show_set_epoch_are_unknown(epochs):
    loader = DataLoader(Pairs(), 4, sampler=DistributedSampler(Pairs(), 2, 0))
    with pytest.raises(TrainError, match="do not show what set_epoch is called with"):
        written(loader, "grain", epochs=epochs)
    assert "fixed_epoch" not in written(loader, "grain", epochs=(0, 1)).files["data.py"]


def test_collate_fn_of_the_script_has_to_be_passed():
    data = written(DataLoader(Pairs(), 4, collate_fn=collate)).files["data.py"]
    assert "def batches(dataset, collate_fn, *" in data
    compile(data, "data.py", "exec")
    assert "collate_fn=None" in written(DataLoader(Pairs(), 4)).files["data.py"]
