"""The way back with the file beside the pytree: the original state dict, bit for bit."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from torch import nn

from converters.checkpoint import PytreeLeaf, StateDict, open_checkpoint
from converters.checkpoint.reader import TensorInfo
from converters.errors import KeptFileError, MisfitError, OutputError
from converters.kept import kept_keys, kept_path, read_kept, writing_kept
from converters.layers.join import SUM, Concat, Stack
from converters.layers.layout import Part, Permute
from converters.mapping import make_plan, read_slots
from converters.mapping.module_tree import Outcome, Slot, Target
from converters.output import load_pytree, write_pytree
from converters.reverse import to_state_dict, to_torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, (2, 5))
        self.norm = nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(2)])
        self.embedding = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.arange(5))


def state_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    if "norm.num_batches_tracked" in state:
        state["norm.num_batches_tracked"].fill_(41)
    return state


def written(folder, state, slots, *, form="safetensors", stored=None, cast=None):
    """What a conversion does: the file beside first, then the pytree."""
    checkpoint = StateDict("net.pt", state)
    plan = make_plan("net.pt", checkpoint.infos, slots)
    assert plan.refused == ()
    output = folder / f"net.flax.{form}"
    with writing_kept(output, plan, checkpoint, stored=stored):
        pass
    leaves = []
    for leaf in plan.leaves:
        array = np.ascontiguousarray(leaf.read(checkpoint.read))
        array = array.astype(cast) if cast and array.dtype.kind == "f" else array
        info = TensorInfo(array.shape, array.dtype.name)
        leaves.append(PytreeLeaf(leaf.path, info, lambda array=array: array))
    write_pytree(output, leaves, form)
    return output


def restored(output, **options):
    """In memory and as a file, which must be the same."""
    found = to_state_dict(output, **options)
    file = output.with_name("file.safetensors")
    done = to_torch(output, output=file, overwrite=True, **options)
    read = open_checkpoint(file)
    assert list(read.infos) == list(found) == [row.key for row in done.rows]
    for key, tensor in found.items():
        assert read.infos[key].dtype == str(tensor.dtype).removeprefix("torch.")
        assert read.infos[key].shape == tuple(tensor.shape)
        bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        np.testing.assert_array_equal(np.array(read.read(key)).reshape(-1).view(np.uint8), bits)
    return found


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert found[key].shape == tensor.shape, key
        bits = [np.ascontiguousarray(t.view(torch.uint8)) if t.ndim else t.numpy()
                for t in (found[key].contiguous(), tensor.contiguous())]  # fmt: skip
        np.testing.assert_array_equal(*bits, err_msg=key)


@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_bit_for_bit_with_ties_buffers_and_order(tmp_path, form, api):
    model = Net()
    state = state_of(model)
    state["conv.weight"].view(-1)[:3] = torch.tensor([float("nan"), -0.0, float("inf")])
    output = written(tmp_path, state, read_slots(model, api), form=form)
    found = restored(output)
    assert_same(found, state)
    assert found["norm.num_batches_tracked"] == 41
    assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
    model.load_state_dict(found)


def test_only_what_the_pytree_lacks_is_kept(tmp_path):
    model = Net()
    output = written(tmp_path, state_of(model), read_slots(model))
    assert kept_path(output) == tmp_path / "net.flax.torch.safetensors"
    assert kept_path(output).stat().st_size < 8000
    assert list(read_kept(kept_path(output)).tensors) == ["norm.num_batches_tracked"]


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_prefixes_and_files(tmp_path, suffix, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Net()
    state = state_of(model)
    stored = {key: f"module._orig_mod.{key}" for key in state}
    output = written(tmp_path, state, read_slots(model), stored=stored)
    done = to_torch(output, output=f"back.{suffix}")
    assert done.counts == {"arrays": 11, "kept": 1, "tied": 1, "divided": 0}
    assert done.format == suffix
    if suffix == "pt":
        found = torch.load("back.pt", weights_only=True)
        assert type(found) is dict
    else:
        with safe_open("back.safetensors", framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
        read = open_checkpoint(Path("back.safetensors"))
        found = {key: torch.from_numpy(read.read(key).copy()) for key in read.infos}
    assert_same(found, {stored[key]: tensor for key, tensor in state.items()})
    before = sorted(tmp_path.iterdir())
    assert to_torch(output, dry_run=True).rows == done.rows
    assert sorted(tmp_path.iterdir()) == before
    assert to_torch(output).output == Path("net.restored.safetensors")


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_every_dtype(tmp_path, dtype):
    bits = torch.arange(256).to(torch.uint8).view(dtype)
    side = bits.numel() // 4
    model = nn.Sequential(nn.Linear(side, 4, bias=False))
    state = {"0.weight": bits.reshape(4, side)}
    output = written(tmp_path, state, read_slots(model))
    assert_same(restored(output), state)


def lstm_slots():
    """Two gates of four, each with two biases that Flax keeps as their sum."""

    def gates(key, join):
        return Slot(key, (6,), "LSTM", Outcome.MAPPED, tuple(
            Target(f"params/h{gate}/bias", part=Part(0, 3 * i, 3 * i + 3), join=SUM, index=join)
            for i, gate in enumerate("if")
        ))  # fmt: skip

    weight = Slot("w", (6, 2), "LSTM", Outcome.MAPPED, tuple(
        Target(f"params/i{gate}/kernel", Permute((1, 0)), Part(0, 3 * i, 3 * i + 3))
        for i, gate in enumerate("if")
    ))  # fmt: skip
    return {"w": weight, "b_ih": gates("b_ih", 0), "b_hh": gates("b_hh", 1)}


def lstm_state():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(6, 2, generator=generator),
        "b_ih": torch.randn(6, generator=generator),
        "b_hh": torch.randn(6, generator=generator),
    }


def test_terms_of_a_sum_are_kept_and_parts_are_joined(tmp_path):
    state = lstm_state()
    output = written(tmp_path, state, lstm_slots())
    assert_same(restored(output), state)
    assert [row.origin for row in to_torch(output, dry_run=True).rows] == ["arrays", "kept", "kept"]


def edit(output, path, value):
    arrays = {}
    with safe_open(output, framework="np") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    arrays[path] = np.asarray(value, arrays[path].dtype)
    save_numpy(arrays, output)


def test_trained_values_come_back_and_a_changed_sum_stays_exact(tmp_path):
    state = lstm_state()
    output = written(tmp_path, state, lstm_slots())
    kernel = np.arange(6).reshape(2, 3)
    edit(output, "params/if/kernel", kernel)
    edit(output, "params/hi/bias", [1.25, 3.1, -7])
    found = restored(output)
    np.testing.assert_array_equal(found["w"][3:], kernel.T)
    np.testing.assert_array_equal(found["w"][:3], state["w"][:3])
    total = (found["b_ih"] + found["b_hh"]).numpy()
    expected = load_pytree(output)["params"]
    np.testing.assert_array_equal(total[:3], expected["hi"]["bias"])
    np.testing.assert_array_equal(total[3:], expected["hf"]["bias"])
    np.testing.assert_array_equal(found["b_hh"][3:], state["b_hh"][3:])  # this gate is as it was
    rows = {row.key: row for row in to_torch(output, dry_run=True).rows}
    assert rows["b_ih"].origin == "divided"
    assert "all of params/hi/bias" in rows["b_ih"].note
    assert "zero" in rows["b_hh"].note


def test_a_cast_is_said(tmp_path):
    model = Net()
    state = state_of(model)
    output = written(tmp_path, state, read_slots(model), cast=ml_dtypes.bfloat16)
    found = restored(output)
    assert found["conv.weight"].dtype == torch.bfloat16
    torch.testing.assert_close(
        found["conv.weight"], state["conv.weight"].bfloat16(), rtol=0, atol=0
    )
    row = to_torch(output, dry_run=True).rows[1]
    assert row.note == "the values are those of bfloat16, not the original float32"
    wide = restored(output, original_dtype=True)
    assert {key: tensor.dtype for key, tensor in wide.items()} == {
        key: tensor.dtype for key, tensor in state.items()
    }
    torch.testing.assert_close(wide["conv.weight"], found["conv.weight"].float(), rtol=0, atol=0)


def test_the_terms_of_a_sum_that_was_cast(tmp_path):
    state = lstm_state()
    output = written(tmp_path, state, lstm_slots(), cast=ml_dtypes.bfloat16)
    found = restored(output, original_dtype=True)
    np.testing.assert_array_equal(found["b_ih"], state["b_ih"])
    np.testing.assert_array_equal(found["b_hh"], state["b_hh"])


def test_stacked_and_concatenated(tmp_path):
    def slot(key, shape, *targets):
        return Slot(key, shape, "Linear", Outcome.MAPPED, targets)

    transposed = Permute((1, 0))
    slots = {
        "a.weight": slot("a.weight", (2, 3), Target("params/k", transposed, None, Stack(1), 0)),
        "b.weight": slot("b.weight", (2, 3), Target("params/k", transposed, None, Stack(1), 1)),
        "a.bias": slot("a.bias", (2,), Target("params/b", join=Stack(0), index=0)),
        "b.bias": slot("b.bias", (2,), Target("params/b", join=Stack(0), index=1)),
        "a.one": slot("a.one", (), Target("params/one", join=Stack(0), index=0)),
        "b.one": slot("b.one", (), Target("params/one", join=Stack(0), index=1)),
        "q": slot("q", (2, 5), Target("params/qk", transposed, None, Concat(1), 0)),
        "k": slot("k", (4, 5), Target("params/qk", transposed, None, Concat(1), 1)),
    }
    state = {key: torch.randn(slot.shape) for key, slot in slots.items()}
    output = written(tmp_path, state, slots)
    assert load_pytree(output)["params"]["k"].shape == (3, 2, 2)
    assert_same(restored(output), state)


def test_a_foreign_file_beside_is_refused(tmp_path, refused):
    model = Net()
    output = written(tmp_path, state_of(model), read_slots(model))
    other = tmp_path / "other.flax.safetensors"
    save_numpy({"params/conv/kernel": np.zeros((2, 5, 3, 3), np.float32),
                "params/new/kernel": np.zeros(2, np.float32)}, other)  # fmt: skip
    with pytest.raises(MisfitError) as caught:
        to_torch(other, kept=kept_path(output))
    assert "params/conv/kernel is (2, 5, 3, 3), not (2, 5, 3, 4)" in caught.value.misfits
    assert "params/new/kernel is not wanted" in caught.value.misfits
    assert len(caught.value.misfits) == 12
    with refused(KeptFileError, "is missing", "--model"):
        to_torch(other)
    with refused(KeptFileError, "was not written beside a pytree"):
        to_torch(other, kept=other)


def test_a_damaged_file_beside_is_refused(tmp_path, refused):
    model = Net()
    output = written(tmp_path, state_of(model), read_slots(model))
    beside = kept_path(output)
    content = beside.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    good = json.loads(header["__metadata__"]["record"])
    for spoil in (
        lambda record: record["keys"].pop(0),
        lambda record: record["keys"].append(record["keys"][0]),
        lambda record: record["leaves"][0]["pieces"][0].__setitem__(1, "transpose(9)"),
        lambda record: record["leaves"][0]["pieces"][0].__setitem__(0, "nothing"),
        lambda record: record["leaves"].pop(0),
        lambda record: record.pop("source"),
    ):
        record = json.loads(json.dumps(good))
        spoil(record)
        header["__metadata__"]["record"] = json.dumps(record)
        text = json.dumps(header).encode()
        beside.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with refused(KeptFileError, "is damaged"):
            to_torch(output)
    header["__metadata__"]["version"] = "2"
    text = json.dumps(header).encode()
    beside.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with refused(KeptFileError, "has version 2"):
        to_torch(output)


def test_outputs_are_not_overwritten(tmp_path, refused):
    model = Net()
    state = state_of(model)
    output = written(tmp_path, state, read_slots(model))
    checkpoint = StateDict("net.pt", state)
    plan = make_plan("net.pt", checkpoint.infos, read_slots(model))
    with writing_kept(output, plan, checkpoint):  # the same once more is no harm
        pass
    other = StateDict("net.pt", state | {"norm.num_batches_tracked": torch.tensor(42)})
    for sibling in (output, output.with_suffix(".msgpack")):
        with refused(OutputError, "exists already"), writing_kept(sibling, plan, other):
            pass
    with writing_kept(output, plan, other, overwrite=True):
        pass
    with refused(OutputError, "is the pytree itself"):
        to_torch(output, output=output, overwrite=True)
    with refused(OutputError, "is the pytree itself"):
        to_torch(output, output=kept_path(output), overwrite=True)
    output.unlink()  # as after a kill between the two files
    with writing_kept(output, plan, checkpoint):
        pass
    kept_path(output).write_text("precious")
    with refused(OutputError, "exists already"), writing_kept(output, plan, checkpoint):
        pass


def test_kept_keys_are_known_without_values():
    slots = lstm_slots()
    infos = {key: TensorInfo(slot.shape, "float32") for key, slot in slots.items()}
    assert kept_keys(make_plan("net.pt", infos, slots)) == ("b_ih", "b_hh")
