"""Entries are found by themselves, and none comes in without a proof."""

import dataclasses
import pkgutil
import subprocess
import sys

import pytest

from converters.layers import UNCHANGED, LayerEntry, Weight, entries, kinds


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
        LayerEntry("Linear", "", twice, entries()["Linear"].cases)


@pytest.mark.parametrize("entry", list(entries().values()), ids=lambda entry: entry.kind)
def test_every_entry_names_a_torch_layer_and_all_its_tensors(entry):
    import torch

    assert isinstance(getattr(torch.nn, entry.kind), type)
    known = {weight.torch for weight in entry.weights} | {name for name, _ in entry.dropped}
    for case in entry.cases:
        assert set(case.torch(torch.nn).state_dict()) <= known
