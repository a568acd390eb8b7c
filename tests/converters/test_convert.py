"""The public functions, from a file to a file."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from converters import convert, convert_to_pytree, load_pytree, plan
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    CheckpointInMemoryError,
    ModelLoadError,
    NotAStateDictError,
    NotFiniteError,
    OutputError,
    RefusedKeysError,
    UnsupportedDtypeError,
)
from converters.mapping.file import save_mapping
from converters.reverse import to_state_dict, to_torch

MODEL = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(256, 256)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with `net.py:Net` in it, and no folder of compiled code beside it."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    return tmp_path


def every_bit_pattern(dtype):
    """A (256, 256) weight that holds every value of a type of one or two bytes."""
    if torch.empty(0, dtype=dtype).itemsize == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(256, 256)
    return torch.arange(65536).to(torch.uint8).view(dtype).reshape(256, 256)


@pytest.mark.parametrize("form", ["safetensors", "msgpack"])
@pytest.mark.parametrize("source", ["pt", "safetensors"])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.float8_e5m2, "float8_e5m2"),
    ],
)
def test_dtype_and_bits_are_kept(folder, form, source, dtype, name):
    weight = every_bit_pattern(dtype)
    state = {"dense.weight": weight, "dense.bias": weight[3].clone()}
    checkpoint = folder / f"net.{source}"
    (save_file if source == "safetensors" else torch.save)(state, checkpoint)
    conversion = convert(checkpoint, model="net.py:Net", format=form)
    kernel = load_pytree(conversion.output)["params"]["dense"]["kernel"]
    assert kernel.dtype == np.dtype(getattr(ml_dtypes, name, name))
    unsigned = np.uint16 if weight.itemsize == 2 else np.uint8
    expected = np.arange(65536).astype(unsigned).reshape(256, 256).T
    np.testing.assert_array_equal(np.ascontiguousarray(kernel).view(unsigned), expected)


def save_net(path="net.pt"):
    torch.manual_seed(0)
    state = {"dense.weight": torch.randn(256, 256), "dense.bias": torch.randn(256)}
    torch.save(state, path)
    return state


def test_default_output_is_in_the_current_directory(folder):
    (folder / "elsewhere").mkdir()
    state = save_net("elsewhere/net.v2.pt")
    conversion = convert("elsewhere/net.v2.pt", model="net.py:Net")
    assert conversion.output == Path("net.v2.flax.safetensors")
    assert conversion.format == "safetensors"
    assert conversion.parameters == 256 * 257
    assert conversion.size == 4 * 256 * 257
    assert sorted(path.name for path in folder.iterdir()) == [
        "elsewhere",
        "net.py",
        "net.v2.flax.safetensors",
        "net.v2.flax.torch.safetensors",
    ]
    loaded = load_pytree(conversion.output)
    np.testing.assert_array_equal(loaded["params"]["dense"]["bias"], state["dense.bias"].numpy())


def test_default_output_of_a_folder_and_of_an_index(folder, monkeypatch):
    shard = "model-00001-of-00001.safetensors"
    Path("small").mkdir()
    save_file(save_net(), f"small/{shard}")
    weight_map = {"dense.weight": shard, "dense.bias": shard}
    index = Path("small/model.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert convert("small", model="net.py:Net").output == Path("small.flax.safetensors")
    assert convert(index, model="net.py:Net").output == Path("model.flax.safetensors")
    monkeypatch.chdir("small")
    assert convert(".", model="../net.py:Net").output == Path("small.flax.safetensors")


def test_the_output_name_chooses_the_format(folder):
    save_net()
    assert convert("net.pt", model="net.py:Net", output="a.msgpack").format == "msgpack"
    forced = convert("net.pt", model="net.py:Net", output="b.msgpack", format="safetensors")
    assert forced.format == "safetensors"
    assert convert("net.pt", model="net.py:Net", format="msgpack").output == Path(
        "net.flax.msgpack"
    )


def test_an_existing_output_is_kept(folder, refused):
    save_net()
    Path("out").write_text("precious")
    with refused(OutputError, "out exists already"):
        convert("net.pt", model="net.py:Net", output="out")
    assert Path("out").read_text() == "precious"
    convert("net.pt", model="net.py:Net", output="out", overwrite=True)
    assert "params" in load_pytree("out")


def test_the_checkpoint_itself_is_never_the_output(folder, refused):
    save_net()
    before = Path("net.pt").read_bytes()
    with refused(OutputError, "is the checkpoint itself"):
        convert("net.pt", model="net.py:Net", output="./net.pt", overwrite=True)
    assert Path("net.pt").read_bytes() == before


class MakesMarker:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def truncated():
    save_net()
    content = Path("net.pt").read_bytes()
    Path("net.pt").write_bytes(content[: len(content) // 2])


def with_code():
    torch.save({"dense.weight": MakesMarker()}, "net.pt")


def with_unknown_key():
    torch.save({"other": torch.ones(1)}, "net.pt")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (truncated, CheckpointDamagedError),
        (with_code, CheckpointHoldsCodeError),
        (with_unknown_key, RefusedKeysError),
    ],
)
def test_a_refused_checkpoint_leaves_nothing(folder, make, error, refused):
    make()
    before = sorted(folder.iterdir())
    with refused(error, "net.pt"):
        convert("net.pt", model="net.py:Net")
    assert sorted(folder.iterdir()) == before
    assert not Path("executed").exists()


def test_without_a_model_what_is_ambiguous_is_refused(folder):
    torch.save({"mix.weight": torch.randn(5, 5)}, "net.pt")
    with pytest.raises(RefusedKeysError, match=r"--model.*--assume") as caught:
        convert("net.pt")
    (row,) = caught.value.refused
    assert row.key == "mix.weight"
    assert list(folder.glob("*.flax.*")) == []
    done = convert("net.pt", assume=["mix=Linear"])
    (leaf,) = done.plan.leaves
    assert leaf.path == "params/mix/kernel"


def test_prefixes_of_wrappers_are_left_out_and_come_back(folder):
    state = {f"module._orig_mod.{key}": value for key, value in save_net().items()}
    torch.save({"model": state, "epoch": 3}, "train.pt")
    done = convert("train.pt", model="net.py:Net")
    assert {leaf.path for leaf in done.plan.leaves} == {
        "params/dense/kernel",
        "params/dense/bias",
    }
    assert "the weights are the entry `model` of the file" in done.notes
    assert any("module." in note and "_orig_mod." in note for note in done.notes)
    back = to_state_dict(done.output)
    assert list(back) == list(state)
    assert all(torch.equal(back[key], tensor) for key, tensor in state.items())


def test_what_is_only_a_part_is_said_to_be(folder):
    adapter = {"q.lora_A.weight": torch.ones(2, 4), "q.lora_B.weight": torch.ones(4, 2)}
    save_file({"a": torch.ones(2)}, "net-00001-of-00002.safetensors")
    save_file(adapter, "adapter.safetensors")
    (folder / "config.json").write_text('{"width": 4}')
    done = convert("net-00001-of-00002.safetensors")
    assert any("one of 2 shards" in note for note in done.notes)
    assert any(
        "names no known model: the layers are inferred from the keys" in note for note in done.notes
    )
    done = convert("adapter.safetensors", assume=["q.lora_[AB]=Linear"])
    assert any("q.lora_A.weight is an adapter's" in note for note in done.notes)


def test_a_saved_mapping_stands_for_the_model(folder):
    state = {f"model.{key}": value for key, value in save_net().items()}
    torch.save(state, "train.pt")
    by_model = convert("train.pt", model="net.py:Net", to="nnx", output="one.safetensors")
    save_mapping(by_model.plan, "mapping.yaml", by_model.api)
    by_file = convert("train.pt", mapping="mapping.yaml", output="two.safetensors")
    assert by_file.api == "nnx"
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_bytes_that_are_no_quantized_weights(folder, dtype, refused):
    state = {
        "weight": every_bit_pattern(dtype)[:9],  # at the top: nnx has it under the same name
        "dense.weight": every_bit_pattern(dtype)[:, 1:],
        "dense.bias": torch.ones(256),
    }
    torch.save(state, "net.pt")
    with refused(UnsupportedDtypeError, "is quantized", "--as-stored"):
        convert("net.pt", assume=["weight=Parameter"])
    done = convert(
        "net.pt",
        to="nnx",
        as_stored=True,
        assume=["weight=Parameter"],
        dtype="bfloat16",
        shard_bytes=70_000,
    )
    assert any("looks quantized" in note for note in done.notes), done.notes
    tree = load_pytree(done.output)
    np.testing.assert_array_equal(tree["weight"], state["weight"].numpy(), strict=True)
    kernel = state["dense.weight"].numpy().T
    np.testing.assert_array_equal(tree["dense"]["kernel"], kernel, strict=True)
    back = to_torch(done.output, output="back.safetensors").output
    with safe_open(back, "pt") as file:
        assert torch.equal(file.get_tensor("dense.weight"), state["dense.weight"])


def test_cast_to_another_dtype(folder):
    state = save_net() | {"steps": torch.tensor(3)}
    tree = convert_to_pytree(state, assume=["steps=buffer"], dtype="bfloat16")
    kernel = tree["params"]["dense"]["kernel"]
    assert kernel.dtype == ml_dtypes.bfloat16
    expected = state["dense.weight"].T.to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(kernel.astype(np.float32), expected)
    assert tree["buffers"]["steps"].dtype == np.int64


def test_values_that_are_not_finite(folder, refused):
    state = save_net()
    state["dense.bias"][3] = float("nan")
    torch.save(state, "net.pt")
    done = convert("net.pt", model="net.py:Net", output="one.safetensors")
    assert [leaf.path for leaf in done.written.not_finite] == ["params/dense/bias"]
    with refused(NotFiniteError, "params/dense/bias"):
        convert("net.pt", model="net.py:Net", output="two.safetensors", fail_on_nonfinite=True)
    assert not list(folder.glob("two.*"))
    torch.save(save_net() | {"dense.bias": torch.ones(256)}, "net.pt")
    convert("net.pt", model="net.py:Net", output="two.safetensors")
    before = {path: path.read_bytes() for path in folder.glob("*two.*")}
    assert len(before) == 2
    state["more.num_batches_tracked"] = torch.tensor(3)
    torch.save(state, "net.pt")
    with refused(NotFiniteError, "params/dense/bias"):
        convert(
            "net.pt",
            assume=["more=dropped"],
            output="two.safetensors",
            overwrite=True,
            fail_on_nonfinite=True,
        )
    assert {path: path.read_bytes() for path in folder.glob("*two.*")} == before


def test_wrong_arguments(folder, refused):
    state = save_net()
    with refused(ModelLoadError, "the model is a type"):
        convert_to_pytree(state, model=nn.Linear)
    with refused(NotAStateDictError, "for files"):
        convert_to_pytree(state, model=nn.Linear(2, 3), key="model")
    with pytest.raises(ValueError, match="'gguf' is not one of"):
        convert("net.pt", model="net.py:Net", format="gguf")


def test_in_memory_and_on_disk_are_the_same(folder):
    state = save_net()
    model = nn.Module()
    model.dense = nn.Linear(256, 256, device="meta")
    conversion = convert("net.pt", model="net.py:Net")
    for tree in (
        convert_to_pytree(state, model=model),
        convert_to_pytree("net.pt", model="net.py:Net"),
        load_pytree(conversion.output),
    ):
        assert tree["params"].keys() == {"dense"}
        dense = tree["params"]["dense"]
        np.testing.assert_array_equal(dense["kernel"], state["dense.weight"].numpy().T)
        np.testing.assert_array_equal(dense["bias"], state["dense.bias"].numpy())


def test_a_training_checkpoint_by_its_key(folder):
    torch.save({"epoch": 1, "model": save_net()}, "training.pt")
    assert convert("training.pt", model="net.py:Net", key="model").plan.counts["mapped"] == 2


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("cls", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_hugging_face_models_with_tied_heads(tmp_path, cls, sharded):
    """Saved by transformers, which stores a tied tensor once, and read through config.json."""
    torch.manual_seed(0)
    if cls == "GPT2LMHeadModel":
        config = transformers.GPT2Config(
            vocab_size=31, n_positions=8, n_embd=6, n_layer=2, n_head=2
        )
        embedding, path = "transformer.wte.weight", "params/transformer/wte/embedding"
    else:
        config = transformers.BertConfig(
            vocab_size=31,
            hidden_size=6,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=10,
        )
        embedding = "bert.embeddings.word_embeddings.weight"
        path = "params/bert/embeddings/word_embeddings/embedding"
    model = getattr(transformers, cls)(config)
    model.save_pretrained(tmp_path, max_shard_size="2KB" if sharded else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    made = plan(tmp_path)
    assert made.refused == ()
    (row,) = (row for row in made.mapped if row.path == path)
    assert (row.key, row.shape, row.target_shape) == (embedding, (31, 6), (31, 6))
    # A state dict of torch has both names of a tied tensor.
    full = plan(model.state_dict(), model=model)
    assert full.refused == ()
    assert full.counts["tied"] == (1 if cls == "GPT2LMHeadModel" else 2)
    assert {row.path for row in full.mapped} == {row.path for row in made.mapped}


def test_a_state_dict_in_memory_is_sent_to_the_function_that_converts_it():
    module = nn.Linear(2, 3)
    for given, call in (
        (module.state_dict(), "converters.convert_to_pytree(state_dict)"),
        (module, "converters.convert_to_pytree(model.state_dict(), model=model)"),
    ):
        with pytest.raises(CheckpointInMemoryError) as raised:
            convert(given)
        assert call in str(raised.value)
    pytree = convert_to_pytree(module.state_dict(), model=module)
    assert pytree["params"]["kernel"].shape == (2, 3)
