"""The settings of a port as another instance of the original has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from converters.graph.writing.original.settings import configuration_of, read_setting

_Key = tuple[str, str]


def values_elsewhere(
    settings: Mapping[str, Any],
    sources: Mapping[str, tuple[str, tuple[str, ...]]],
    own: tuple[torch.nn.Module, Mapping[str, Any]],
    other: tuple[torch.nn.Module, Mapping[str, Any]],
) -> dict[str, Any]:
    """The value of each setting in another instance of the model.

    A setting is read there where this instance has its value: an attribute of a configuration, an argument of
    the constructor, an attribute of a module.

    Args:
        settings: those of the port, with their values.
        sources: see `Port.sources`.
        own: the model that was ported, and the arguments of its constructor.
        other: the same of the other instance.

    Returns:
        Name → value; a setting that cannot be read there is left out.
    """
    values = {}
    for name, value in settings.items():
        setting, paths = sources.get(name, (name, ()))
        here, there = (dict(_readings(*instance, setting, paths)) for instance in (own, other))
        for key, reading in here.items():
            if reading == value and type(reading) is type(value) and key in there:
                values[name] = there[key]
                break
    return values


def _readings(
    root: torch.nn.Module, arguments: Mapping[str, Any], setting: str, paths: tuple[str, ...]
) -> Iterator[tuple[_Key, Any]]:
    """Everything in a model that has the name of a setting, by where it stands."""
    modules = dict(root.named_modules())
    places = list(dict.fromkeys(above for path in paths for above in _upwards(path)))
    for path in (*places, ""):
        if path not in modules:
            continue
        config = configuration_of(modules[path])
        yield from _reading(("config", path), read_setting(config, setting))
        for place, entries in _entries(config):
            prefix = f"{place.rpartition('.')[2]}_"
            for name in dict.fromkeys((setting, setting.removeprefix(prefix))):
                yield from _reading((f"config {place}", path), read_setting(entries, name))
        for prefix, part in _parts(config):
            if setting.startswith(f"{prefix}_"):
                inner = setting.removeprefix(f"{prefix}_")
                yield from _reading((f"config {prefix}", path), read_setting(part, inner))
    for name, value in arguments.items():
        if name.strip("_") == setting:
            yield from _reading(("argument", name), value)
    for name, value in arguments.items():
        if not isinstance(value, int | float | str | tuple | list | torch.nn.Module | None):
            yield from _reading(("object", name), read_setting(value, setting))
    for path in places:
        for name in (setting, f"_{setting}"):
            if path in modules:
                yield from _reading((f"module {name}", path), vars(modules[path]).get(name))


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _entries(
    config: Any, place: str = "", depth: int = 2
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings within a configuration: "rope_parameters", and those within them."""
    held = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for name, inner in held.items():
        if isinstance(name, str) and isinstance(inner, Mapping) and depth:
            below = f"{place}.{name}" if place else name
            yield below, inner
            yield from _entries(inner, below, depth - 1)


def _parts(config: Any) -> Iterator[tuple[str, Any]]:
    """The configurations within one: "text" for `text_config`."""
    if config is not None and hasattr(config, "__dict__"):
        for name, part in vars(config).items():
            if name.endswith("_config") and hasattr(part, "__dict__"):
                yield name.removesuffix("_config"), part


def _reading(key: _Key, value: Any) -> Iterator[tuple[_Key, Any]]:
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, tuple | list) and all(
        isinstance(element, int | float) for element in value
    ):
        yield key, tuple(value)
