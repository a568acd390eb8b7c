"""Removal of the prefixes that wrappers add to the keys of a state dict.

    module._orig_mod.layer.0._fsdp_wrapped_module.weight  →  layer.0.weight

A wrapper's own name, which no user's module has (`_orig_mod`), is removed everywhere. `module.` and
`model.` may be names of the model. If the model's keys are known, they are removed where the keys
then fit better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from converters.errors import DuplicateKeyError

# torch.compile, FSDP (current and first version), activation checkpointing, Lightning Fabric,
# torch_xla's FSDP.
ANYWHERE = frozenset(
    {
        "_orig_mod",
        "_fsdp_wrapped_module",
        "_fpw_module",
        "_checkpoint_wrapped_module",
        "_forward_module",
        "_xla_checkpoint_wrapped_module",
    }
)
# DataParallel, DistributedDataParallel, AveragedModel and DeepSpeed; then the attributes for the
# model in modules of training frameworks (Lightning).
_PARALLEL = "module"
_LEADING = frozenset({_PARALLEL, "model", "net", "network"})
_COUNTERS = frozenset({"n_averaged"})  # AveragedModel's entries beside its module
_MOST_LEADING = 4


@dataclass(frozen=True)
class Cleaned:
    """Keys without the prefixes of wrappers.

    Attributes:
        names: original key → clean key, in the original order; every key is there.
        removed: the removed prefixes ("module.", "_orig_mod."), in order of appearance.
    """

    names: Mapping[str, str]
    removed: tuple[str, ...]


def clean(keys: Iterable[str], wanted: Collection[str] | None = None) -> Cleaned:
    """Remove the prefixes of wrappers.

    Args:
        keys: the keys of the state dict.
        wanted: the keys of the model; None if unknown: then `module.` is removed if all keys
            begin with it, and names that may belong to the model stay.

    Raises:
        DuplicateKeyError: two keys would become equal.
    """
    originals = list(keys)
    known = frozenset(wanted or ())
    names = {key: key if key in known else _without_wrappers(key) for key in originals}
    if wanted is None:
        names = _without_common(names)
    else:
        names = _without_leading(names, known)
        names = {key: _without_inner(name, known) for key, name in names.items()}
    _require_distinct(names)
    return Cleaned(names, removed_from(names))


def _without_wrappers(key: str) -> str:
    if "._" not in key and not key.startswith(
        "_"
    ):  # all marks begin this way, so most keys return here
        return key
    return ".".join(step for step in key.split(".") if step not in ANYWHERE) or key


def _without_common(names: Mapping[str, str]) -> dict[str, str]:
    """Remove `module.` as long as every key begins with it."""
    stripped = dict(names)
    prefix = f"{_PARALLEL}."
    while True:
        concerned = {key: name for key, name in stripped.items() if name not in _COUNTERS}
        if not concerned or not all(name.startswith(prefix) for name in concerned.values()):
            return stripped
        stripped |= {key: name.removeprefix(prefix) for key, name in concerned.items()}


def _without_leading(names: Mapping[str, str], wanted: Collection[str]) -> dict[str, str]:
    """Remove the leading names so that the most keys fit; in a tie, use the shorter prefix."""
    best = dict(names)
    fitting = sum(name in wanted for name in names.values())
    chains = {chain for name in names.values() for chain in _chains(name)}
    for chain in sorted(chains, key=lambda chain: (chain.count("."), chain)):
        trial = {
            key: name if name in wanted else name.removeprefix(chain) for key, name in names.items()
        }
        count = sum(name in wanted for name in trial.values())
        if count > fitting:
            best, fitting = trial, count
    return best


def _chains(name: str) -> list[str]:
    """Return the prefixes of a key that may belong to wrappers: "model.", "model.module."."""
    chains = []
    chain = ""
    for step in name.split(".")[:-1][:_MOST_LEADING]:
        if step not in _LEADING:
            break
        chain += f"{step}."
        chains.append(chain)
    return chains


def _without_inner(name: str, wanted: Collection[str]) -> str:
    """Remove `module` inside a key (DDP around a part of the model), if the key then fits."""
    if name in wanted:
        return name
    steps = name.split(".")
    shorter = ".".join(step for step in steps if step != _PARALLEL)
    return shorter if shorter in wanted else name


def _require_distinct(names: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for key, name in names.items():
        other = first.setdefault(name, key)
        if other != key:
            raise DuplicateKeyError(
                f"{other} and {key} are both {name} without the prefixes of wrappers",
                "save the state dict of one of the two",
            )


def removed_from(names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the parts of the original keys that are missing in the new keys, each once."""
    removed: dict[str, None] = {}
    for key, name in names.items():
        if key == name:
            continue
        kept = name.split(".")
        for step in key.split("."):
            if kept and step == kept[0]:
                kept.pop(0)
            else:
                removed[f"{step}."] = None
    return tuple(removed)
