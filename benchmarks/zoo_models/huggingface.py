"""transformers' types, tiny and random, with inputs that fit: huggingface.csv says how each was built."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("huggingface.csv")


def names() -> Iterator[tuple[str, str]]:
    """Type and class of every model."""
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["type"], row["class"]


# So many drawings are tried until none has a choice among equal scores, of which torch defines no order.
DRAWINGS = 8


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """The model in evaluation mode, and its inputs; drawn anew where it would choose among equal scores."""
    import torch

    from converters.graph.recording.ties import Ties

    for seed in range(DRAWINGS):
        model, inputs = _drawn(name, seed)
        with torch.no_grad(), Ties() as ties:
            model(**inputs)
        if not ties.lines:
            return model, inputs
    return _drawn(name, 0)


def _drawn(name: str, seed: int) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    from benchmarks.zoo_models.tiny import candidates, tiny
    from migrate.port.weights import stir

    transformers.logging.set_verbosity_error()
    with TABLE.open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["type"] == name)
    kind, shrunk = transformers.CONFIG_MAPPING[name], int(row["shrunk"])
    config = tiny(kind, shrunk)
    config.architectures = [row["class"]]
    _spread(config)
    torch.manual_seed(seed)
    try:
        model = transformers.AutoModel.from_config(config, attn_implementation=row["attention"])
    except ValueError:  # some part of it has only its own attention
        config = tiny(kind, shrunk)
        model = transformers.AutoModel.from_config(config)
    model = model.eval().float()
    stir(model, seed=7 + seed)
    if seed:
        _enliven(model, seed)
    for label, make in candidates(model, config):
        if label == row["inputs"]:
            return model, {key: one for key, one in make().items() if one is not None}
    raise ValueError(f"no inputs {row['inputs']}")


def _spread(config: Any) -> None:
    """Draw weights from a wider range than SAM's (1e-10), which makes a model that gives its biases."""
    import transformers

    if getattr(config, "initializer_range", 1.0) < 1e-3:
        config.initializer_range = 0.02
    for one in vars(config).values():
        if isinstance(one, transformers.PreTrainedConfig):
            _spread(one)


def _enliven(model: Any, seed: int) -> None:
    """Draw the scales of batch norms around 1, as trained ones are; around 0, an image is one value."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.affine:
            scale = 1 + 0.1 * torch.randn(module.weight.shape, generator=generator)
            module.weight.data.copy_(scale)
