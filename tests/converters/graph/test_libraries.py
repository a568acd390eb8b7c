"""Functions of the model's own files come back; those of libraries that it only uses do not."""

from __future__ import annotations

import inspect
import sys
import textwrap
import types
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama import modeling_llama

from converters.graph.recording import libraries
from converters.graph.recording.libraries import own_files
from tests.converters.graph import models


def file_of(thing: object) -> str:
    found = inspect.getsourcefile(thing)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_users_files_are_the_models_own() -> None:
    own = own_files(models.Mlp(2, 2))
    assert own(file_of(models))
    assert own("/anywhere/net.py")
    assert not own(file_of(np))
    assert not own(file_of(click))
    assert not own(file_of(textwrap))


def test_a_package_with_a_class_of_the_model_is_the_models_own() -> None:
    with torch.device("meta"):
        model = LlamaModel(LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    assert own_files(model)(file_of(modeling_llama))
    assert not own_files(models.Mlp(2, 2))(file_of(modeling_llama))


def test_the_toolkit_is_no_file_of_the_user_where_a_hook_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An installation for development does not put the folder of its packages into `sys.path`."""
    package = Path(libraries.__file__).parents[2]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not package.is_relative_to(p or ".")])
    own = libraries.own_files(torch.nn.Linear(2, 2))
    assert not own(str(package / "graph" / "recording" / "group.py"))
    assert own(str(package.parent / "examples" / "ddp_toy" / "before.py"))


def test_a_copy_of_the_toolkit_is_no_file_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script in the toolkit's own folder runs in a copy of it, and imports shims from there."""
    shims = types.ModuleType("shims")
    shims.__file__ = str(tmp_path / "shims" / "__init__.py")
    monkeypatch.setitem(sys.modules, "shims", shims)
    own = libraries.own_files(torch.nn.Linear(2, 2))
    assert not own(str(tmp_path / "shims" / "patches" / "rng.py"))
    assert own(str(tmp_path / "train.py"))
