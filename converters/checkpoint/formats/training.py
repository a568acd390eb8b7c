"""Finding the weights in what a training loop saved.

A training checkpoint is a dict of dicts: the model's state dict under one name or another, an averaged copy
of it, an optimizer's state, counters. The weights are the one dict whose entries are tensors by name; where
there are several, the user says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from converters.checkpoint.formats.torch_names import Named, OtherTensor
from converters.checkpoint.lazy import LazyTensor
from converters.errors import NotAStateDictError, UnsupportedDtypeError

TOP = "."
_DEEPEST = 4
_MOST_DICTS = 100_000
_SHOWN = 8
# Entries that hold tensors and are no weights, by the names that training loops give them.
_NOT_WEIGHTS = re.compile(
    r"optim|sched|scaler|callback|loops|rng|random|hyper_?param|config|^args$|_extra_state$|^_metadata$",
    re.IGNORECASE,
)
_FLOATING = re.compile(r"float|complex")
_EXTRA_STATE = "_extra_state"
_SAVE_STATE_DICT = "save model.state_dict()"


@dataclass(frozen=True)
class Found:
    """The weights in a checkpoint.

    Attributes:
        where: the names on the way to them, joined by dots; "" if they are the whole.
        tensors: key → tensor.
        others: key → what it is, of the entries that are no tensors.
        rest: the training checkpoint without them.
    """

    where: str
    tensors: Mapping[str, LazyTensor]
    others: Mapping[str, str]
    rest: Mapping[Any, Any] = field(default_factory=dict)


def find_state_dict(source: str, loaded: Any, key: str | None) -> Found:
    """The state dict in what was loaded.

    Args:
        source: what to call it in messages.
        loaded: plain containers and lazy tensors.
        key: the names on the way to it, joined by dots ("ema.state_dict"; "." for the whole); None:
            the only one that there is.

    Raises:
        NotAStateDictError: there is none, or several and no key, or none under this key.
        UnsupportedDtypeError: tensors of it are of a kind that cannot be converted.
    """
    if not isinstance(loaded, dict):
        raise NotAStateDictError(
            f"{source} holds a {_kind(loaded)}, not a state dict", _SAVE_STATE_DICT
        )
    candidates = _candidates(loaded)
    path = _named(source, loaded, candidates, key) if key else _only(source, loaded, candidates)
    chosen = loaded
    for name in path:
        chosen = chosen[name]
    tensors, others = _sorted_out(source, chosen)
    return Found(".".join(path), tensors, others, _without(loaded, path))


def describe(value: Any) -> str:
    """What an entry is, in a few words."""
    if isinstance(value, LazyTensor):
        shape = "×".join(map(str, value.info.shape)) or "scalar"
        return f"tensor {shape} {value.info.dtype}"
    if isinstance(value, OtherTensor):
        return value.form
    if value is None or isinstance(value, bool | int | float):
        return f"{_kind(value)} {str(value)[:40]}" if value is not None else "None"
    if isinstance(value, dict | list | tuple | set | str | bytes):
        return f"{_kind(value)} of {len(value)}"
    return _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, LazyTensor | OtherTensor):
        return "Tensor"
    if isinstance(value, Named):
        return f"torch {value.kind}"
    return type(value).__name__


Path = tuple[str, ...]


def _candidates(loaded: dict[Any, Any]) -> list[Path]:
    """The ways to every dict that may be a state dict; the strong ones alone if there are any."""
    found = list(_tensor_dicts(loaded, (), set()))
    strong = [path for path, is_strong in found if is_strong]
    return strong or [path for path, _ in found]


def _tensor_dicts(node: dict[Any, Any], path: Path, seen: set[int]) -> Iterator[tuple[Path, bool]]:
    """The way to each dict with tensors by name, and whether one of them is surely a weight.

    A single number, or integers (a random generator's state), are none surely.
    """
    if id(node) in seen or len(seen) > _MOST_DICTS or "param_groups" in node:
        return
    seen.add(id(node))
    tensors = [
        value
        for name, value in node.items()
        if type(name) is str
        and isinstance(value, LazyTensor | OtherTensor)
        and not name.endswith(_EXTRA_STATE)
    ]
    if tensors:
        yield path, any(map(_is_weight, tensors))
    if len(path) == _DEEPEST:
        return
    for name, value in node.items():
        if type(name) is str and isinstance(value, dict) and not _NOT_WEIGHTS.search(name):
            yield from _tensor_dicts(value, (*path, name), seen)


def _is_weight(tensor: Any) -> bool:
    if isinstance(tensor, OtherTensor):
        return True
    return bool(tensor.info.shape) and bool(_FLOATING.search(tensor.info.dtype))


def _only(source: str, loaded: dict[Any, Any], candidates: list[Path]) -> Path:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise NotAStateDictError(
            f"{source} is a training checkpoint with {len(candidates)} state dicts inside",
            f"choose one with --key: {_choice(candidates)}",
        )
    if "param_groups" in loaded:
        raise NotAStateDictError(f"{source} is an optimizer's state, not weights", _SAVE_STATE_DICT)
    raise NotAStateDictError(
        f"{source} holds a dict without tensors by name, not a state dict", _SAVE_STATE_DICT
    )


def _named(source: str, loaded: dict[Any, Any], candidates: list[Path], key: str) -> Path:
    if key == TOP and () in candidates:
        return ()
    path = None if key == TOP else _walk(loaded, key)
    if path is not None and path not in candidates:
        node: Any = loaded
        for name in path:
            node = node[name]
        below = _candidates(node) if isinstance(node, dict) else []
        # A weak one (only numbers, say) is good enough where it is asked for.
        path = (*path, *below[0]) if len(below) == 1 else None
        candidates = [(key, *way) for way in below] or candidates
    if path is None:
        remedy = "leave the key out" if candidates == [()] else f"choose {_choice(candidates)}"
        raise NotAStateDictError(
            f'{source} has no state dict under "{key}"',
            remedy if candidates else _SAVE_STATE_DICT,
        )
    return path


def _walk(node: Any, key: str) -> Path | None:
    """The way along a dotted key; a name may have dots itself."""
    if not isinstance(node, dict):
        return None
    if key in node:
        return (key,)
    for index, letter in enumerate(key):
        if letter == "." and key[:index] in node:
            rest = _walk(node[key[:index]], key[index + 1 :])
            if rest is not None:
                return (key[:index], *rest)
    return None


def _choice(candidates: list[Path]) -> str:
    shown = ", ".join(".".join(path) or TOP for path in candidates[:_SHOWN])
    more = len(candidates) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _sorted_out(
    source: str, chosen: dict[Any, Any]
) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    tensors: dict[str, LazyTensor] = {}
    others: dict[str, str] = {}
    wrong: list[tuple[str, OtherTensor]] = []
    for key, value in chosen.items():
        is_tensor = isinstance(value, LazyTensor | OtherTensor)
        if is_tensor and type(key) is not str:
            raise NotAStateDictError(
                f"{source}: {str(key)[:40]!a} is not named by a string, but is a tensor",
                _SAVE_STATE_DICT,
            )
        if isinstance(value, OtherTensor):
            wrong.append((key, value))
        elif isinstance(value, LazyTensor) and not key.endswith(_EXTRA_STATE):
            tensors[key] = value
        else:
            others[str(key)[:200]] = describe(value)
    if wrong:
        _refuse(source, wrong)
    return tensors, others


def _refuse(source: str, wrong: list[tuple[str, OtherTensor]]) -> NoReturn:
    key, tensor = wrong[0]
    more = f" (and {len(wrong) - 1} more tensors)" if len(wrong) > 1 else ""
    if "element type" in tensor.form:
        raise UnsupportedDtypeError(
            f"{source}: {key[:200]} is {tensor.form}{more}, which cannot be converted exactly",
            "cast it before saving the checkpoint",
        )
    raise NotAStateDictError(
        f"{source}: {key[:200]} is {tensor.form}, not a plain dense tensor{more}",
        "convert it to a dense tensor before saving",
    )


def _without(loaded: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """The containers without the one at the end of the way; those on the way are copies."""
    if not path:
        return {}
    rest = dict(loaded)
    inner = rest.pop(path[0])
    if len(path) > 1:
        rest[path[0]] = _without(inner, path[1:])
    return rest
