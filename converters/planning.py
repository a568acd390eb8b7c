"""The plan of a conversion: what each key of a checkpoint becomes, before a value is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from converters.checkpoint import Checkpoint, StateDict, open_checkpoint
from converters.errors import ModelRequiredError, NotAStateDictError
from converters.mapping import Plan, make_plan, read_slots
from converters.mapping.paths import Api
from converters.model import load_config_model, load_model, require_module

if TYPE_CHECKING:
    from torch import Tensor, nn

CheckpointLike: TypeAlias = "Path | str | Mapping[str, Tensor]"
ModelLike: TypeAlias = "str | nn.Module | None"


class PlanOptions(TypedDict, total=False):
    """What decides the places of the keys; every one may be left out.

    Attributes:
        model: whose tree of modules says what each key is: `pkg.mod:factory`,
            `path/file.py:factory` or an `nn.Module` on any device. Without it: the `config.json` of the
            folder.
        key: the entry that holds the weights, in a training checkpoint of `torch.save`.
        to: whose names the paths are made of: "linen" (the default) or "nnx".
    """

    model: ModelLike
    key: str | None
    to: Api


def opened(checkpoint: CheckpointLike, options: PlanOptions) -> Checkpoint:
    """The checkpoint, its headers read.

    Raises:
        ConversionError: it cannot be read; the subclass says why.
    """
    key = options.get("key")
    if isinstance(checkpoint, Mapping):
        if key is not None:
            raise NotAStateDictError("a key is for files, not for a state dict", "pass its entry")
        return StateDict("the state dict", checkpoint)
    return open_checkpoint(Path(checkpoint), key)


def planned(source: CheckpointLike, checkpoint: Checkpoint, options: PlanOptions) -> Plan:
    """The plan for an opened checkpoint; refused keys are rows of it.

    Args:
        source: what was opened, for the configuration beside it.
        checkpoint: the opened one.
        options: what decides.

    Raises:
        ConversionError: the model cannot be had; the subclass says why.
    """
    slots = read_slots(_model(source, options.get("model")), options.get("to", "linen"))
    return make_plan(checkpoint.source, checkpoint.infos, slots)


def _model(checkpoint: CheckpointLike, model: ModelLike) -> Any:
    if isinstance(model, str):
        return load_model(model)
    if model is not None:
        return require_module("the model", model)
    if not isinstance(checkpoint, Mapping):
        path = Path(checkpoint)
        folder = path if path.is_dir() else path.parent
        # A file of a Hugging Face folder belongs to the configuration beside it; if it does not
        # after all, its keys and shapes are refused.
        if (folder / "config.json").is_file():
            return load_config_model(folder)
    named = "the state dict" if isinstance(checkpoint, Mapping) else str(checkpoint)
    raise ModelRequiredError(
        f"{named} has no config.json that says which layers its keys belong to",
        "pass --model pkg.mod:factory or path/file.py:factory",
    )
