"""An optimizer and its schedules, as they are when they are first stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def read_groups(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Describe an optimizer: class, and options and parameter names of each group."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        members = [names.get(id(parameter), "") for parameter in group["params"]]
        groups.append({"names": [name for name in members if name], "options": options})
    cls = type(optimizer)
    return {"class": f"{cls.__module__}.{cls.__qualname__}", "groups": groups}


def read_rates(optimizer: Any) -> list[float]:
    """Learning rate of each group, in this update."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def read_schedules(schedulers: Sequence[Any], optimizer: Any) -> list[dict[str, Any]]:
    """Describe the schedules of an optimizer: class and attributes that can be written down."""
    return [
        {"class": f"{type(s).__module__}.{type(s).__qualname__}"}
        for s in schedulers
        if getattr(s, "optimizer", None) is optimizer
    ]
