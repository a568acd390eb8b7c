"""Greedy decoding with a torch model, without a cache: the model is compared, not a generator."""

from __future__ import annotations

from typing import Any

import torch

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Generated
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.decoding import Rows
from migrate.parity.sides.torch.capture.tree import to_numpy
from migrate.parity.sides.torch.model import TorchModel


def generate(
    runner: TorchModel, settings: SideSettings, inputs: InputSet, tokens: int, output: str
) -> Generated:
    """See `Runner.generate`.

    Raises:
        InputsError: there are no `input_ids`.
        ParityError: the model has no such output, or the sequences become too long for it.
    """
    model, where = runner.variant(settings)
    sequences, margins = [], []
    with torch.no_grad():
        for number in range(inputs.count):
            rows = Rows(inputs[number], tokens, runner.shown)
            _check_length(runner, rows.length)
            for step in range(tokens):
                outputs = dict(runner.outputs(model, rows.arrays, where, settings))
                if output not in outputs:
                    raise ParityError(
                        f"{runner.shown}: has no output {output or '(a single tensor)'}",
                        f"its outputs are: {', '.join(outputs)}",
                    )
                rows.append(step, to_numpy(outputs[output]))
            sequences.append(rows.tokens())
            margins.append(rows.margins())
    return Generated(tuple(sequences), tuple(margins))


def _check_length(runner: TorchModel, length: int) -> None:
    config: Any = getattr(runner.module, "config", None)
    most = getattr(config, "max_position_embeddings", None)
    most = getattr(config, "max_target_positions", most)
    if isinstance(most, int) and length > most:
        raise ParityError(
            f"{runner.shown}: {length} tokens are more than its {most} positions",
            "give shorter inputs, or generate fewer tokens",
        )
