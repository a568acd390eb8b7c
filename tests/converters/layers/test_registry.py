"""Entries are found by themselves, and none comes in without a proof."""

import dataclasses
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from converters.layers import UNCHANGED, Weight, entries, kinds


def test_every_file_of_kinds_is_found():
    files = {info.name for info in pkgutil.iter_modules(kinds.__path__)}
    assert {"linear", "embedding", "layer_norm", "conv", "batch_norm", "group_norm"} <= files
    assert {"Linear", "Embedding", "LayerNorm", "GroupNorm", "Conv3d", "BatchNorm1d"} <= set(
        entries()
    )


def test_adding_a_file_is_enough(tmp_path):
    (tmp_path / "planted.py").write_text(
        "import dataclasses\n"
        "from converters.layers.kinds.linear import ENTRIES as LINEAR\n"
        "ENTRIES = (dataclasses.replace(LINEAR[0], kind='Planted'),)\n"
    )
    assert entries_with_folder(tmp_path).split() == ["True"]


def test_a_file_without_entries_fails(tmp_path):
    (tmp_path / "planted.py").write_text("")
    assert "declares no ENTRIES" in entries_with_folder(tmp_path)


def test_a_kind_declared_twice_fails(tmp_path):
    (tmp_path / "planted.py").write_text("from converters.layers.kinds.linear import ENTRIES\n")
    assert "Linear, which there is already" in entries_with_folder(tmp_path)


def entries_with_folder(folder):
    """What a process prints that looks for entries in one more folder."""
    script = (
        "import sys\n"
        "from converters.layers import entries, kinds\n"
        "kinds.__path__.append(sys.argv[1])\n"
        "print('Planted' in entries())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    return run.stdout or run.stderr


def test_an_entry_without_a_forward_case_fails():
    with pytest.raises(ValueError, match="no forward case"):
        dataclasses.replace(entries()["Linear"], cases=())


def test_an_entry_that_uses_a_name_twice_fails():
    twice = (
        Weight("weight", "kernel", "kernel", UNCHANGED),
        Weight("bias", "kernel", "bias", UNCHANGED),
    )
    with pytest.raises(ValueError, match="a name twice"):
        dataclasses.replace(entries()["Linear"], weights=twice)


@pytest.mark.parametrize("entry", list(entries().values()), ids=lambda entry: entry.kind)
def test_every_entry_names_a_torch_layer_and_all_its_tensors(entry):
    import torch

    assert isinstance(getattr(torch.nn, entry.kind), type)
    dropped = {name for name, _ in entry.dropped}
    for case in entry.cases:
        layer = case.torch(torch.nn)
        weights = entry.weights_of(layer)
        if weights:
            assert set(layer.state_dict()) <= {weight.torch for weight in weights} | dropped


NO_ENTRY = {
    "FractionalMaxPool2d": "refused by name if it was given its random samples as a buffer",
    "FractionalMaxPool3d": "likewise",
    "NonDynamicallyQuantizableLinear": "is a Linear, by what it derives from",
    "Unflatten": "has none: its docstring alone speaks of a Linear",
    "Module": "the base of all",
    "RNNBase": "the base of RNN, LSTM and GRU",
    "RNNCellBase": "the base of the cells",
}


def torch_layers():
    """Every public module of torch.nn, by name."""
    import torch

    found = {}
    for info in pkgutil.iter_modules(torch.nn.modules.__path__):
        file = importlib.import_module(f"torch.nn.modules.{info.name}")
        for name, value in vars(file).items():
            is_layer = isinstance(value, type) and issubclass(value, torch.nn.Module)
            if is_layer and value.__module__ == file.__name__ and not name.startswith("_"):
                found[name] = value
    return found


def may_have_tensors(cls):
    """Whether the class or one that it derives from makes a parameter or a buffer, or other layers."""
    import torch

    source = "".join(
        inspect.getsource(one)
        for one in cls.__mro__
        if one is not torch.nn.Module and one.__module__.startswith("torch.nn.modules.")
    )
    makes = ("Parameter(", "register_buffer(", "Linear(", "ModuleList(", "TransformerEncoder(")
    return any(word in source for word in makes)


def test_every_torch_layer_with_tensors_has_an_entry_or_a_reason():
    import torch

    layers = torch_layers()
    with_tensors = {name for name, cls in layers.items() if may_have_tensors(cls)}
    assert len(layers) > 150
    assert {
        "Linear",
        "LSTM",
        "PReLU",
        "Transformer",
        "CrossEntropyLoss",
        "BatchNorm2d",
    } <= with_tensors
    lazy = {name for name in layers if name.startswith("Lazy")}  # refused until they were run
    losses = {name for name, cls in layers.items() if cls.__module__ == "torch.nn.modules.loss"}
    containers = {
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "ParameterList",
        "ParameterDict",
        "Container",
    }
    left = with_tensors - set(entries()) - lazy - losses - containers - set(NO_ENTRY)
    assert left == set()
    assert set(entries()) <= set(layers)
    assert {name for name in entries() if not hasattr(torch.nn, name)} == set()
