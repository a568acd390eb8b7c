"""Tiny random models of transformers' types, built on the CPU, nothing downloaded."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from tests.converters.zoo.shrink import shrink

LARGEST = 4_000_000  # parameters; what the tables of names fail to make small is left out

ALL_TYPES = tuple(MODEL_MAPPING_NAMES)


class NotBuiltError(Exception):
    """The tables of `shrink` do not fit this type, or it needs a package that is not here."""


def build(model_type: str) -> Any:
    """The base model of a type, its tensors filled with random values that all differ.

    Raises:
        NotBuiltError: it cannot be built, or is not small.
    """
    transformers.logging.set_verbosity_error()
    reason: Exception | None = None
    for level in range(3):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = _built(CONFIG_MAPPING[model_type], level)
        except (
            Exception
        ) as error:  # whatever a configuration or a model raises at sizes it dislikes
            reason = reason or error
        else:
            return _filled(model)
    raise NotBuiltError(f"{model_type}: {type(reason).__name__}: {str(reason)[:160]}")


def _built(config_class: Any, level: int) -> Any:
    config = shrink(config_class, level)
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        size = sum(parameter.numel() for parameter in model.parameters())
    except Exception:  # it reads values; those that do are small
        size = 0
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    return AutoModel.from_config(config)


def _filled(model: Any) -> Any:
    """Random values everywhere: ones and zeros would hide a wrong permutation."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator).to(tensor.dtype))
    return model
