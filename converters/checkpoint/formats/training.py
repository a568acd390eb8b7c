"""Search for the weights in a training checkpoint.

A training checkpoint is a dict of dicts: the model's state dict under some name, an averaged copy
of it, an optimizer's state, counters. The weights are the only dict whose entries are tensors by
name. If there are several, the user chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from converters.checkpoint.formats.torch_names import Named, OtherTensor
from converters.checkpoint.inert.arrays import OtherArray, StoredArray
from converters.checkpoint.inert.modules import RecordedModule, WithModules, is_module, read_module
from converters.checkpoint.inert.options import contents, named, plain
from converters.checkpoint.inert.records import Constructor, Record
from converters.checkpoint.lazy import LazyTensor
from converters.errors import NotAStateDictError, UnsupportedDtypeError

TOP = "."
_DEEPEST = 4
_MOST_DICTS = 100_000
_SHOWN = 8
# Entries with tensors that are not weights, by the names that training loops give them.
_NOT_WEIGHTS = re.compile(
    r"optim|sched|scaler|callback|loops|rng|random|hyper_?param|config|^args$|_extra_state$|^_metadata$"
    r"|^constants$",
    re.IGNORECASE,
)
# Entries with the options of the run.
_OPTIONS = re.compile(
    r"arg(ument)?s|conf(ig)?|cfg|opt(ion)?s?|h_?params|hyper_?param|settings|kwargs|params$",
    re.IGNORECASE,
)
_MOST_ITEMS = 16  # maximum list length that is searched
_FLOATING = re.compile(r"float|complex")
_EXTRA_STATE = "_extra_state"
_SAVE_STATE_DICT = "save model.state_dict()"


@dataclass(frozen=True)
class StateDictMatch:
    """State dict in a checkpoint.

    Attributes:
        where: the dotted path of the state dict; "" if it is the whole checkpoint.
        tensors: key → tensor.
        others: key → description of an entry that is not a tensor.
        rest: the training checkpoint without the state dict.
        modules: path → module, if the file holds a whole module.
        options: the options of the run as plain values, by entry name.
    """

    where: str
    tensors: Mapping[str, LazyTensor]
    others: Mapping[str, str]
    rest: Mapping[Any, Any] = field(default_factory=dict)
    modules: Mapping[str, RecordedModule] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def find_state_dict(source: str, loaded: Any, key: str | None) -> StateDictMatch:
    """Find the state dict in a loaded file.

    Args:
        source: the name of the file in messages.
        loaded: plain containers and lazy tensors.
        key: the dotted path of the state dict ("ema.state_dict"; "." for the whole); None for the
            only one.

    Raises:
        NotAStateDictError: there is no state dict (under this key), or several and no key.
        UnsupportedDtypeError: it has tensors of a kind that cannot be converted.
    """
    if not is_module(loaded) and _entries(loaded) is None:
        raise NotAStateDictError(
            f"{source} holds {_article(_kind(loaded))}, not a state dict", _SAVE_STATE_DICT
        )
    candidates = _candidates(loaded)
    path = _named(source, loaded, candidates, key) if key else _only(source, loaded, candidates)
    chosen = loaded
    for name in path:
        chosen = (_entries(chosen) or {})[name]
    modules: Mapping[str, RecordedModule] = {}
    if is_module(chosen):
        chosen, modules = read_module(chosen)
    elif isinstance(chosen, WithModules):
        modules = chosen.modules
    tensors, others = _sorted_out(source, _entries(chosen) or {})
    rest = _without(loaded, path)
    return StateDictMatch(".".join(path), tensors, others, rest, modules, _options(rest))


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """Return the named entries of a value that may hold state dicts: a dict, an object, a short list."""
    if isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
        if any(is_module(item) or contents(item) for item in value):
            return {str(position): item for position, item in enumerate(value)}
        return None
    return None if is_module(value) else contents(value)


def _options(rest: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the entries with the options of the run."""
    options = {}
    for name, value in rest.items():
        if type(name) is not str or is_module(value):
            continue
        held = contents(value)
        if not held or "param_groups" in held:
            continue
        is_object, is_called_so = type(value) is Record, bool(_OPTIONS.search(name))
        # `args` may hold an array; a dict called `params`, or an object called `ema`, holds
        # weights.
        if (is_object and is_called_so) or ((is_object or is_called_so) and not _has_tensors(held)):
            options[name] = plain(value)
    return options


def _has_tensors(held: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, LazyTensor | OtherTensor) for value in held.values())


def _article(kind: str) -> str:
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


def describe(value: Any) -> str:
    """Describe an entry in a few words."""
    if isinstance(value, LazyTensor):
        shape = "×".join(map(str, value.info.shape)) or "scalar"
        return f"tensor {shape} {value.info.dtype}"
    if isinstance(value, OtherTensor | OtherArray):
        return value.form
    if value is None or isinstance(value, bool | int | float):
        return f"{_kind(value)} {str(value)[:40]}" if value is not None else "None"
    if isinstance(value, dict | list | tuple | set | str | bytes):
        return f"{_kind(value)} of {len(value)}"
    return _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, LazyTensor | OtherTensor):
        return "Tensor"
    if isinstance(value, Record | OtherArray | Constructor):
        return named(value)
    if isinstance(value, Named):
        return f"torch {value.kind}"
    return type(value).__name__


Path = tuple[str, ...]


_WEAK, _ARRAYS, _STRONG = range(3)


def _candidates(loaded: Any) -> list[Path]:
    """Return the paths of all possible state dicts; if there are several, only the strongest."""
    paths = list(_tensor_dicts(loaded, (), set()))
    most = max((strength for _, strength in paths), default=_WEAK)
    return [path for path, strength in paths if strength == most]


def _tensor_dicts(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, int]]:
    """Yield the path of each module or dict with tensors by name, and how likely it holds weights.

    A single number, or integers (a random generator's state), is never a likely weight. NumPy
    arrays are not weights if there are tensors.
    """
    if id(node) in seen or len(seen) > _MOST_DICTS:
        return
    seen.add(id(node))
    if is_module(node):
        state = read_module(node)[0].values()
        tensors = [value for value in state if isinstance(value, LazyTensor | OtherTensor)]
        if tensors:
            yield path, max(map(_strength, tensors))
        return
    held = _entries(node)
    if held is None or "param_groups" in held:
        return
    tensors = [
        value
        for name, value in held.items()
        if type(name) is str
        and isinstance(value, LazyTensor | OtherTensor)
        and not name.endswith(_EXTRA_STATE)
    ]
    if tensors:
        yield path, max(map(_strength, tensors))
    if len(path) == _DEEPEST:
        return
    for name, value in held.items():
        if type(name) is str and _may_hold(value) and not _NOT_WEIGHTS.search(name):
            yield from _tensor_dicts(value, (*path, name), seen)


def _may_hold(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) or type(value) is Record


def _strength(tensor: Any) -> int:
    if not _is_weight(tensor):
        return _WEAK
    return _ARRAYS if isinstance(tensor, StoredArray) else _STRONG


def _is_weight(tensor: Any) -> bool:
    if isinstance(tensor, OtherTensor):
        return True
    return bool(tensor.info.shape) and bool(_FLOATING.search(tensor.info.dtype))


def _only(source: str, loaded: Any, candidates: list[Path]) -> Path:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise NotAStateDictError(
            f"{source} is a training checkpoint with {len(candidates)} state dicts inside",
            f"choose one with --key: {_choice(candidates)}",
        )
    if "param_groups" in (_entries(loaded) or {}):
        raise NotAStateDictError(f"{source} is an optimizer's state, not weights", _SAVE_STATE_DICT)
    raise NotAStateDictError(
        f"{source} holds {_article(_kind(loaded))} without tensors by name, not a state dict",
        _SAVE_STATE_DICT,
    )


def _named(source: str, loaded: Any, candidates: list[Path], key: str) -> Path:
    if key == TOP and () in candidates:
        return ()
    path = None if key == TOP else _walk(loaded, key)
    if path is not None and path not in candidates:
        node: Any = loaded
        for name in path:
            node = (_entries(node) or {})[name]
        inner = _candidates(node)
        # A weak candidate (only numbers, for example) is accepted if the user names it.
        path = (*path, *inner[0]) if len(inner) == 1 else None
        candidates = [(key, *way) for way in inner] or candidates
    if path is None:
        remedy = "leave the key out" if candidates == [()] else f"choose {_choice(candidates)}"
        raise NotAStateDictError(
            f'{source} has no state dict under "{key}"',
            remedy if candidates else _SAVE_STATE_DICT,
        )
    return path


def _walk(node: Any, key: str) -> Path | None:
    """Return the path of a dotted key. A name may contain dots itself."""
    held = _entries(node)
    if held is None:
        return None
    if key in held:
        return (key,)
    for index, letter in enumerate(key):
        if letter == "." and key[:index] in held:
            rest = _walk(held[key[:index]], key[index + 1 :])
            if rest is not None:
                return (key[:index], *rest)
    return None


def _choice(candidates: list[Path]) -> str:
    shown = ", ".join(".".join(path) or TOP for path in candidates[:_SHOWN])
    more = len(candidates) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _sorted_out(
    source: str, chosen: Mapping[Any, Any]
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


def _without(loaded: Any, path: Path) -> dict[Any, Any]:
    """Return the containers without the value at the end of the path; those on the path are copied."""
    if not path:
        return {}
    rest = dict(_entries(loaded) or {})
    inner = rest.pop(path[0])
    if len(path) > 1:
        rest[path[0]] = _without(inner, path[1:])
    return rest
