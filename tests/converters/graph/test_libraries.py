"""Functions of the model's own files come back; those of libraries that it only uses do not."""

from __future__ import annotations

import inspect
import textwrap

import click
import numpy as np
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama import modeling_llama

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
