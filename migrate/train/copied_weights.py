"""Frozen weights of a script that become copies of trained ones: a reference that is refreshed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.mapping.file import load_mapping
from migrate.train.errors import TrainError


def copied_weights(
    where: str, recorded: Mapping[str, Any], weights: Any, mapping: Path
) -> dict[str, Any]:
    """Facts about frozen weights that become copies of trained ones; none if there are no copies.

    Args:
        where: the line of the loss.
        recorded: the recorded run.
        weights: the weights of the port.
        mapping: the file of the port's mapping.

    Raises:
        TrainError: the copies follow no known rule, or the two have other layouts.
    """
    copies = recorded["copies"]
    if copies is None:
        return {}
    count = len(recorded["updates"]) + recorded["later"]
    every = copies.period(count, bool(recorded.get("ended")))
    if not every:
        seen = ", ".join(map(str, copies.updates[:6]))
        raise TrainError(
            f"{where}: frozen weights become copies of trained ones before updates {seen} of {count}: the "
            "rule of it is unknown",
            "copy them after a fixed number of updates; pass arguments with which this happens twice",
        )
    if copies.kept is None:
        values = ", ".join(f"{decay.value:.4g}" for decay in copies.decays[:6])
        raise TrainError(
            f"{where}: frozen weights move towards trained ones, by another part of the way each time "
            f"({values})",
            "move them by one constant",
        )
    rules = load_mapping(mapping).rules

    def layout(name: str) -> list[Any]:
        rule = next(rule for rule in rules if re.fullmatch(rule.pattern, name))
        return [replace(target, path="") for target in rule.targets]

    paths: dict[str, str] = {}
    for to, of in copies.names.items():
        if layout(to) != layout(of):
            raise TrainError(
                f"{where}: {to} becomes a copy of {of}, but the two have other layouts in Flax",
                "report this with the model",
            )
        pairs = list(zip(weights.paths[to], weights.paths[of], strict=True))
        paths |= {a.removeprefix("params/"): b.removeprefix("params/") for a, b in pairs}
    return {"copied": paths, "copies_every": every, "copies_keep": copies.kept}
