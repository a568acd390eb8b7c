"""Slots without a module: the layer of each key from names, shapes and related keys, or a refusal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from converters.checkpoint.inert.modules import RecordedModule
from converters.checkpoint.reader import TensorInfo
from converters.inference.assume import Assumptions
from converters.inference.build import make_layer, unknown_settings
from converters.inference.context import Context, sharers
from converters.inference.groups import Group, make_groups
from converters.inference.guess import (
    BUFFER,
    CONV1D,
    DROPPED,
    PARAMETER,
    Confidence,
    GroupGuess,
    Guess,
    ambiguous,
)
from converters.inference.recognize import assumed, is_container, learn, recognize, splits
from converters.inference.recorded import RecordedTree
from converters.inference.tree import Node, make_tree
from converters.mapping.module_tree import Outcome, Slot, read_slots
from converters.mapping.paths import Api

# A tree deeper than any real model's would exhaust the stack of recursive code.
_DEEPEST = 100
_FIXED = {PARAMETER, BUFFER, CONV1D}  # stored as loose tensors, not as a layer of torch.nn
# Names of buffers, for dtypes that do not show it.
_BUFFER_NAMES = frozenset(
    {"inv_freq", "original_inv_freq", "freqs_cis", "cos_cached", "sin_cached", "masked_bias"}
    | {"running_mean", "running_var", "pixel_mean", "pixel_std"}
)
_BUFFER_DTYPES = ("int", "uint", "bool")


@dataclass(frozen=True)
class Inference:
    """Result of an inference without a module.

    Attributes:
        guesses: one guess per group of keys.
        slots: key → slot, as from `read_slots`; ambiguous keys are refused.
        unused: assumptions that affect no key, as the user wrote them.
    """

    guesses: tuple[GroupGuess, ...]
    slots: Mapping[str, Slot]
    unused: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> tuple[GroupGuess, ...]:
        """The groups that are refused until the user decides."""
        return tuple(it for it in self.guesses if it.guess.confidence is Confidence.AMBIGUOUS)

    @property
    def counts(self) -> dict[str, int]:
        """Confidence → number of keys."""
        counts: Counter[str] = Counter()
        for it in self.guesses:
            counts[it.guess.confidence.value] += len(it.keys)
        return {confidence.value: counts[confidence.value] for confidence in Confidence}


def infer(
    infos: Mapping[str, TensorInfo],
    assumptions: Assumptions | None = None,
    api: Api = "linen",
    shared: Iterable[frozenset[str]] = (),
    modules: Mapping[str, RecordedModule] | None = None,
) -> Inference:
    """Infer the layer of every key of a checkpoint without its module.

    Args:
        infos: key → shape and dtype, without prefixes.
        assumptions: the user's assumptions about ambiguous layers (`parse_assumptions`).
        api: whose names the paths are made of: "linen" (collection first) or "nnx".
        shared: sets of keys that share a tensor in the file.
        modules: the modules recorded in the file by path, if it holds a whole model.

    Raises:
        ImportError: torch is not installed (its layers are built, on the meta device).
    """
    assumptions = assumptions or Assumptions()
    shared = [frozenset(key for key in keys if key in infos) for keys in shared]
    named = {key: info for key, info in infos.items() if not _is_odd(key)}
    context = Context(make_groups(named), sharers(shared), assumptions)
    learn(context)
    guesses = [
        GroupGuess(key, (key,), (info.shape,), ambiguous("no name of a module", DROPPED))
        for key, info in infos.items()
        if _is_odd(key)
    ]
    root = Node()
    recorded = RecordedTree(modules or {}, infos)
    recorded.lay_out(root)
    used: set[str] = set()
    for group in context.groups.values():
        sure = recorded.certain_guesses.get(group.path)
        if sure is not None:
            shapes = tuple(info.shape for info in group.tensors.values())
            guesses.append(GroupGuess(group.path, group.keys, shapes, sure))
            continue
        for part, guess in _guesses(group, context, used, recorded):
            guess = _place(root, part, guess)
            shapes = tuple(info.shape for info in part.tensors.values())
            guesses.append(GroupGuess(part.path, part.keys, shapes, guess))
    _share(root, shared)
    tree = make_tree(root, lambda path: _assumed_container(path, assumptions, used))
    slots = _slots(infos, guesses, read_slots(tree, api), recorded)
    slots |= _tied(slots, context.shared)
    unused = tuple(it.text for it in assumptions.all if it.text not in used)
    return Inference(tuple(guesses), slots, unused)


def _is_odd(key: str) -> bool:
    """Whether a key has an empty part, or more parts than any real model's."""
    parts = key.split(".")
    return len(parts) > _DEEPEST or not all(parts)


def _guesses(
    group: Group, context: Context, used: set[str], recorded: RecordedTree
) -> Iterable[tuple[Group, Guess]]:
    """Yield the group and its guess; in two parts if an assumption is about some of its keys only."""
    _, givers = context.assumptions.options_for(group.path)
    if needs_options(group):
        used |= {giver.text for giver in givers}
    layers = Assumptions(tuple(it for it in context.assumptions.all if not is_container(it)))
    assumption = layers.kind_for((group.path, *group.keys))
    if assumption is None:
        yield group, recorded.guess(group, context) or recognize(group, context)
        return
    used.add(assumption.text)
    assumed_names, rest = splits(group, assumption)
    part = Group(group.path, {name: group.tensors[name] for name in assumed_names})
    yield part, assumed(part, assumption, context)
    if rest:
        yield from _guesses(
            Group(group.path, {name: group.tensors[name] for name in rest}), context, used, recorded
        )


def needs_options(group: Group) -> bool:
    """Whether options such as heads apply to this group."""
    return "out_proj.weight" in group.tensors or "weight" in group.plain


def _assumed_container(path: str, assumptions: Assumptions, used: set[str]) -> str | None:
    for assumption in assumptions.all:
        if is_container(assumption) and assumption.matches(path):
            used.add(assumption.text)
            return assumption.kind
    return None


def _place(root: Node, group: Group, guess: Guess) -> Guess:
    """Put the group into the tree. The guess becomes ambiguous if no such layer has its tensors."""
    if guess.confidence is Confidence.AMBIGUOUS or guess.kind == DROPPED:
        return guess
    if guess.kind in _FIXED:
        for name, info in group.tensors.items():
            where, tensor = _loose(root, group, name, info, buffer=guess.kind == BUFFER)
            where[name] = tensor
        return guess
    try:
        layer = make_layer(group, guess)
    except ValueError as error:
        return ambiguous(str(error), PARAMETER)
    node = root.at(group.path)
    node.layer, node.kind = layer, guess.kind
    return guess


def _loose(
    root: Node, group: Group, name: str, info: TensorInfo, *, buffer: bool
) -> tuple[dict[str, Any], Any]:
    import torch

    node = root.at(group.path)
    tensor = torch.empty(info.shape, device="meta")
    if buffer or info.dtype.startswith(_BUFFER_DTYPES) or name in _BUFFER_NAMES:
        return node.buffers, tensor
    return node.parameters, torch.nn.Parameter(tensor)


def _share(root: Node, shared: Iterable[frozenset[str]]) -> None:
    """Use one Parameter where the file has one tensor."""
    for keys in shared:
        holders: list[tuple[dict[str, Any], str]] = []
        for key in sorted(keys):
            path, _, name = key.rpartition(".")
            node = root.find(path)
            if node is None:
                continue
            parameters = node.layer._parameters if node.layer is not None else node.parameters
            if parameters.get(name) is not None:
                holders.append((parameters, name))
        for parameters, name in holders[1:]:
            first, first_name = holders[0]
            if parameters[name].shape == first[first_name].shape:
                parameters[name] = first[first_name]


def _slots(
    infos: Mapping[str, TensorInfo],
    guesses: Iterable[GroupGuess],
    placed: Mapping[str, Slot],
    recorded: RecordedTree,
) -> dict[str, Slot]:
    """Return the slots in the checkpoint's order, with the evidence of each."""
    guess_of = {key: it for it in guesses for key in it.keys}
    slots = {}
    for key, info in infos.items():
        evidence = recorded.evidence(key)
        if evidence is not None and key in placed:
            slots[key] = replace(placed[key], evidence=evidence)
            continue
        it = guess_of[key]
        if key not in placed and it.guess.kind != DROPPED:
            # A layer that the file names (attention's out_proj), in a module that it does not name.
            unsure = (
                it.guess if it.guess.alternatives else ambiguous("of no known layer", PARAMETER)
            )
            it = replace(it, guess=unsure)
        slots[key] = _slot(key, info, it, placed.get(key))
    return slots


def _tied(
    slots: Mapping[str, Slot], shared: Mapping[str, frozenset[str]]
) -> Iterable[tuple[str, Slot]]:
    """Yield the slots of keys tied to an Embedding, and of keys tied to an ambiguous key.

    A shared tensor has one layout, that of its first owner. It is ambiguous as long as one owner
    is.
    """
    for key, others in shared.items():
        slot = slots[key]
        known = [slots[it] for it in sorted(others) if slots[it].outcome is Outcome.MAPPED]
        lookup = next((it for it in known if it.kind == "Embedding" and not it.tied), None)
        if slot.outcome is Outcome.REFUSED and lookup is not None:
            evidence = f"certain: the file holds it as one tensor with {lookup.key}"
            tied = Slot(key, slot.shape, lookup.kind, Outcome.MAPPED, (), "", lookup.key, evidence)
            yield key, tied
        elif slot.outcome is Outcome.MAPPED and slot.kind != "Embedding" and lookup is None:
            rivals = [it for it in sorted(others) if slots[it].outcome is Outcome.REFUSED]
            if rivals:
                note = f"ambiguous: one tensor with {rivals[0]}, which is ambiguous"
                yield key, replace(slot, outcome=Outcome.REFUSED, targets=(), tied="", note=note)


def _slot(key: str, info: TensorInfo, it: GroupGuess, slot: Slot | None) -> Slot:
    guess = it.guess
    evidence = f"{guess.confidence.value}: {guess.evidence}"
    if guess.confidence is Confidence.AMBIGUOUS:
        choose = " or ".join(guess.alternatives)
        note = f"ambiguous: {guess.evidence}; --assume '{_pattern(it.path or key)}={choose}'"
        return Slot(key, info.shape, "", Outcome.REFUSED, note=note, evidence=evidence)
    if guess.kind == DROPPED:
        note = f"not wanted: {guess.evidence}"
        return Slot(key, info.shape, "", Outcome.DROPPED, note=note, evidence=evidence)
    assert slot is not None, f"{key} was placed"
    if slot.outcome is not Outcome.MAPPED or slot.tied:
        return replace(slot, evidence=evidence)
    if guess.kind == CONV1D:
        name = key.rpartition(".")[2]
        targets = tuple(
            replace(target, path=_kernel(target.path)) if name == "weight" else target
            for target in slot.targets
        )
        note = "a Linear that keeps (in, out), as Flax does"
        return replace(slot, kind=CONV1D, targets=targets, note=note, evidence=evidence)
    if guess.kind in _FIXED:
        note = "unchanged, under its own name"
        return replace(slot, note=note, evidence=evidence)
    kind = guess.kind
    note = (
        unknown_settings(kind)
        if kind in ("norm", "BatchNorm") or kind.startswith("Conv")
        else slot.note
    )
    return replace(slot, kind=kind, note=note, evidence=evidence)


def _pattern(path: str) -> str:
    """Return a regular expression for a path that also matches the same layer in other blocks."""
    return re.sub(r"\d+", r"\\d+", re.escape(path))


def _kernel(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}kernel"
