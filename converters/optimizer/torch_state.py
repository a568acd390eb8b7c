"""State dict of a torch optimizer, read without running code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters.back.torch_output import to_tensor
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.torch_file import load
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.mapped_file import MappedFile
from converters.errors import OptimizerError


@dataclass(frozen=True)
class TorchOptimizer:
    """Result of `optimizer.state_dict()`.

    Attributes:
        source: the name of the state in messages.
        groups: `param_groups`: options, and the positions of the parameters in `params`.
        state: position → name → tensor or number.
    """

    source: str
    groups: tuple[Mapping[str, Any], ...]
    state: Mapping[int, Mapping[str, Any]]

    @property
    def positions(self) -> list[int]:
        """Positions of all parameters, group by group."""
        return [position for group in self.groups for position in group["params"]]

    @property
    def names(self) -> set[str]:
        """Names of the state's entries."""
        return {name for entries in self.state.values() for name in entries}

    @property
    def parameter_names(self) -> list[str] | None:
        """Parameter names as the script passed them; None if it passed none (torch before 2.6)."""
        names = [name for group in self.groups for name in group.get("param_names") or ()]
        return names if len(names) == len(self.positions) else None

    def group_of(self, position: int) -> int:
        """Return the number of the group that a parameter is in."""
        return next(index for index, group in enumerate(self.groups) if position in group["params"])


def read_optimizer(
    source: Path | str | Mapping[str, Any], key: str | None = None
) -> TorchOptimizer:
    """Read the optimizer's state dict from a file of `torch.save`, or from memory.

    Args:
        source: the file of `optimizer.state_dict()`, a training checkpoint, or such a dict.
        key: the entry of a training checkpoint; None for the only optimizer.

    Raises:
        CheckpointNotFoundError, CheckpointDamagedError, CheckpointHoldsCodeError: the file cannot be read.
        OptimizerError: the file holds no optimizer's state dict, or several.
    """
    name = "the state dict" if isinstance(source, Mapping) else str(source)
    loaded = source if isinstance(source, Mapping) else _load(Path(source))
    state_dict = _find(name, loaded, key)
    optimizer = _checked(name, state_dict["state"], state_dict["param_groups"])
    if isinstance(source, Mapping):
        return optimizer
    state = {position: _in_memory(entries) for position, entries in optimizer.state.items()}
    return replace(optimizer, state=state)


def _find(name: str, loaded: Any, key: str | None) -> Mapping[str, Any]:
    if key is not None:
        loaded = loaded.get(key) if isinstance(loaded, Mapping) else None
        if not _is_optimizer(loaded):
            raise OptimizerError(f'{name} has no optimizer state under "{key}"', "choose another")
        return loaded
    if _is_optimizer(loaded):
        return loaded
    inside = loaded if isinstance(loaded, Mapping) else {}
    nested = {entry: value for entry, value in inside.items() if _is_optimizer(value)}
    for entry, value in inside.items():  # Lightning stores a list
        if isinstance(value, Sequence) and len(value) == 1 and _is_optimizer(value[0]):
            nested[entry] = value[0]
    if len(nested) == 1:
        return next(iter(nested.values()))
    if nested:
        choice = ", ".join(f'"{entry}"' for entry in nested)
        raise OptimizerError(f"{name} has several optimizer states: {choice}", "choose one")
    raise OptimizerError(
        f"{name} has no optimizer state (state and param_groups)", "save optimizer.state_dict()"
    )


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("state"), Mapping)
        and isinstance(value.get("param_groups"), Sequence)
    )


def _checked(name: str, state: Mapping[Any, Any], groups: Sequence[Any]) -> TorchOptimizer:
    is_consistent = bool(groups) and all(
        isinstance(group, Mapping) and isinstance(group.get("params"), Sequence) for group in groups
    )
    if is_consistent:
        state, groups = _numbered(state, groups)
    positions = (
        [position for group in groups for position in group["params"]] if is_consistent else []
    )
    if (
        not is_consistent
        or not all(isinstance(position, int) for position in positions)
        or len(set(positions)) != len(positions)
        or not all(isinstance(entries, Mapping) for entries in state.values())
        or not set(state) <= set(positions)
    ):
        raise OptimizerError(
            f"{name}: its groups and its state do not belong together",
            "save optimizer.state_dict() of a torch optimizer",
        )
    return TorchOptimizer(name, tuple(groups), state)


def _numbered(
    state: Mapping[Any, Any], groups: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[Any, Any], Sequence[Mapping[str, Any]]]:
    """Return the state by position, if it is by name, as from `get_optimizer_state_dict`."""
    names = [name for group in groups for name in group["params"]]
    if not names or not all(isinstance(name, str) for name in names):
        return state, groups
    positions = {name: index for index, name in enumerate(names)}
    if len(positions) != len(names):
        return state, groups
    numbered = [
        {
            **group,
            "params": [positions[name] for name in group["params"]],
            "param_names": list(group["params"]),
        }
        for group in groups
    ]
    return {positions.get(name, name): entries for name, entries in state.items()}, numbered


def _load(path: Path) -> Any:
    """Return the content of the file as plain containers, with lazy tensors and records."""
    file = MappedFile(path)
    with reading(path):
        loaded = load(file).value
    file.rest()
    return loaded


def _in_memory(value: Any) -> Any:
    """Return an optimizer's entry with torch tensors."""
    if isinstance(value, LazyTensor):
        return to_tensor(value.read())
    if type(value) is dict:
        return {name: _in_memory(item) for name, item in value.items()}
    return [_in_memory(item) for item in value] if type(value) is list else value
