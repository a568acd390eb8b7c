"""Mapping files: the outcome of each key, to be read, edited and reused.

    version: 1
    api: linen
    rules:
    - key: encoder\\.layer\\.(\\d+)\\.dense\\.weight
      path: params/encoder/layer_\\1/dense/kernel
      transform: transpose(1, 0)
      kind: Linear
      evidence: module tree

Using a mapping file requires neither a module nor torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from converters.atomic import atomic_write
from converters.checkpoint.reader import TensorInfo
from converters.errors import MappingFileError
from converters.layers.join import ALONE
from converters.layers.layout import UNCHANGED, firsts
from converters.mapping.fold import Folded, FoldEntry, fold
from converters.mapping.module_tree import Outcome, Slot, Target
from converters.mapping.paths import Api
from converters.mapping.plan import Plan, Row, make_plan
from converters.mapping.rules import MappingRule
from converters.mapping.rules_text import VERSION, parse_rules

_REMEDY = "edit it, or write it anew with --save-mapping"
# A mapping file cannot express how torch computes a weight (spectral_norm in its old form,
# pruning).
_COMPUTED = "computed by torch from several tensors: convert with --model"
_HEADER = """\
# Where each key of a torch checkpoint goes: migrate weights CHECKPOINT --mapping THIS_FILE
#
# key: a regular expression for the whole key. Exactly one rule matches each key. Beside `key` stands one of
#   path: path of the array, \\1 is the key's first group. With it: transform, part, join, index
#   to: a list of such paths, for a tensor that goes to several
#   tied: another key that has the same tensor
#   drop: why the key is left out     refuse: why the key cannot be converted
# transform: unchanged, transpose(1, 0), split(axis, sides), merge(axis, sides), flip(axes),
#   times(number), over(number), plus(number); joined by |
"""
_SIZES = """\
# sizes: what transforms name; convert.py sets other values. A side of -1 follows from the tensor's shape, and
#   share(axis, number, of) is one of so many equal parts
"""


@dataclass(frozen=True)
class MappingFile:
    """Mapping file that was read and is consistent.

    Attributes:
        path: the file.
        api: whose names its paths are made of: "linen" or "nnx".
        rules: the rules in file order.
    """

    path: Path
    api: Api
    rules: tuple[MappingRule, ...]
    _literal: Mapping[str, tuple[MappingRule, ...]] = field(init=False, repr=False, compare=False)
    _general: tuple[MappingRule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known: dict[str, tuple[MappingRule, ...]] = {}
        for rule in self.rules:
            if rule.key is not None:
                known[rule.key] = (*known.get(rule.key, ()), rule)
        object.__setattr__(self, "_literal", known)
        object.__setattr__(self, "_general", tuple(it for it in self.rules if it.key is None))

    def slots(self, infos: Mapping[str, TensorInfo]) -> dict[str, Slot]:
        """Return key → slot for every key of the checkpoint, as `read_slots` does for a module.

        Raises:
            MappingFileError: keys match no rule or several, shapes do not fit, two keys have one
                path, or a tie refers to an unmapped key; the message lists all.
        """
        problems: list[str] = []
        slots: dict[str, Slot] = {}
        lines: dict[str, int] = {}
        for key, info in infos.items():
            rules = self.matching(key)
            if len(rules) != 1:
                several = "the rules of lines " + " and ".join(str(rule.line) for rule in rules)
                problems.append(f"{key} is matched by {several if rules else 'no rule'}")
                continue
            lines[key] = rules[0].line
            try:
                slots[key] = rules[0].slot(key, info, self.path.name)
            except ValueError as error:
                problems.append(f"line {rules[0].line}: {key} of shape {info.shape}: {error}")
        for rule in self.rules:  # keys recorded as missing when the file was saved
            if rule.key is not None and rule.key not in infos and rule.outcome is Outcome.REFUSED:
                slots[rule.key] = rule.slot(rule.key, None, self.path.name)
        problems += _wrong_ties(slots, lines)
        if not problems:
            problems = _misfits(infos, slots, lines)
        if problems:
            raise MappingFileError(str(self.path), problems, _REMEDY)
        return slots

    def matching(self, key: str) -> tuple[MappingRule, ...]:
        """Return the rules that match a key, in file order."""
        general = tuple(rule for rule in self._general if rule.pattern.fullmatch(key))
        return tuple(sorted((*self._literal.get(key, ()), *general), key=lambda rule: rule.line))

    def unused(self, infos: Mapping[str, TensorInfo]) -> tuple[str, ...]:
        """Return warnings for the rules that match no key, one line each."""
        used = {rule.line for key in infos for rule in self.matching(key)}
        return tuple(
            f"{self.path}, line {rule.line}: no key is matched by {rule.pattern.pattern}"
            for rule in self.rules
            # A key that would be dropped is not missed: it is of other versions of the model.
            if rule.line not in used and rule.outcome is not Outcome.DROPPED
        )


def _wrong_ties(slots: Mapping[str, Slot], lines: Mapping[str, int]) -> list[str]:
    problems = []
    for key, slot in slots.items():
        if slot.tied:
            owner = slots.get(slot.tied)
            if owner is None or owner.outcome is not Outcome.MAPPED or owner.tied:
                what = "is not mapped" if owner else "is not in the checkpoint"
                problems.append(f"line {lines[key]}: {key} is tied to {slot.tied}, which {what}")
    return problems


def _misfits(
    infos: Mapping[str, TensorInfo], slots: Mapping[str, Slot], lines: Mapping[str, int]
) -> list[str]:
    """Return the mapped keys that the plan refuses: collisions, pieces that do not fit together."""
    plan = make_plan("", infos, slots)
    return [
        f"line {lines[row.key]}: {row.key}: {row.note}"
        for row in plan.refused
        if row.key in lines and slots[row.key].outcome is not Outcome.REFUSED
    ]


def load_mapping(path: Path | str, sizes: Mapping[str, Any] | None = None) -> MappingFile:
    """Read a mapping file.

    Args:
        path: the file.
        sizes: values in place of those that the file's `sizes` have; other names are passed over.

    Raises:
        MappingFileError: the file cannot be read or is invalid; the message lists all problems with
            their lines.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise MappingFileError(str(path), [f"it cannot be read ({reason})"], "name it") from None
    parsed = parse_rules(text, sizes)
    if parsed.problems:
        raise MappingFileError(str(path), parsed.problems, "edit these lines")
    return MappingFile(path, parsed.api, parsed.rules)


@dataclass(frozen=True)
class OpenSizes:
    """Sizes of a model on which the rules of a mapping file depend.

    Attributes:
        values: name → value.
        layers: path of a layer of torch's → its attribute → expression of the names.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of_key(self, key: str) -> Mapping[str, str]:
        """The expressions of the layer that a tensor belongs to."""
        steps = key.split(".")
        owners = (".".join(steps[:end]) for end in range(len(steps) - 1, -1, -1))
        return next((self.layers[owner] for owner in owners if owner in self.layers), {})

    def named(self, rows: Iterable[Row]) -> dict[str, Any]:
        """The sizes that the rules of these rows name, with their values."""
        expressions = {
            self.of_key(row.key)[first]
            for row in rows
            for target in row.targets
            for first in firsts(target.layout)
            if first in self.of_key(row.key)
        }
        names = {
            node.id
            for expression in expressions
            for node in ast.walk(ast.parse(expression, mode="eval"))
            if isinstance(node, ast.Name)
        }
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.values.items()
            if name in names
        }


def save_mapping(
    plan: Plan,
    path: Path | str,
    api: Api = "linen",
    overwrite: bool = False,
    sizes: OpenSizes | None = None,
) -> None:
    """Write a plan as a mapping file. Loaded again, it gives the same plan for the same checkpoint.

    The exception are weights that torch computes from several tensors: the file refuses them.

    Args:
        plan: the outcome of each key. Refused keys are written too, to be edited.
        path: the file.
        api: whose names the plan's paths are made of.
        overwrite: whether an existing file may be replaced.
        sizes: those of the model, for rules that also hold for checkpoints of other sizes; None: the rules
            hold for checkpoints of these shapes.

    Raises:
        OutputError: the file cannot be written.
    """
    text = mapping_text(plan, api, sizes)
    with atomic_write(Path(path), overwrite=overwrite) as file:
        file.write(text.encode())


def mapping_text(plan: Plan, api: Api = "linen", sizes: OpenSizes | None = None) -> str:
    """Return the text of a plan's mapping file. See `save_mapping`."""
    owners = {row.targets: row.key for row in plan.mapped}
    written = [row.refuse(_COMPUTED) if _is_computed(row) else row for row in plan.rows]
    rows = {row.key: row for row in written}
    folded = fold([_entry(row, owners, sizes) for row in written])
    top: dict[str, Any] = {"version": VERSION, "api": api, "checkpoint": Path(plan.checkpoint).name}
    named = {} if sizes is None else sizes.named(written)
    top |= {"sizes": named} if named else {}
    parts = [_HEADER, _SIZES if named else "", _dump(top), "rules:\n"]
    parts += [_dump([_fields(it, rows[it.first.key], sizes)]) for it in folded]
    if not folded:
        parts[-1] = "rules: []\n"
    return "".join(parts)


def _is_computed(row: Row) -> bool:
    return any(str(target.join).startswith("computed") for target in row.targets)


def _entry(
    row: Row, owners: Mapping[tuple[Target, ...], str], sizes: OpenSizes | None
) -> FoldEntry:
    if row.outcome is Outcome.TIED:
        texts: tuple[str, ...] = (owners[row.targets],)
    else:
        texts = tuple(text for it in row.targets for text in (it.path, str(it.index)))
    pieces = tuple((*_layout_and_part(it, row.key, sizes), str(it.join)) for it in row.targets)
    note = "" if row.outcome is Outcome.TIED else row.note
    rest = (row.outcome, row.kind, note, row.evidence, pieces)
    return FoldEntry(row.key, texts, rest, alone=row.shape is None)


def _layout_and_part(target: Target, key: str, sizes: OpenSizes | None) -> tuple[str, str]:
    """The texts of a target's layout and part."""
    if sizes is None:
        return str(target.layout), str(target.part)
    part = target.part if target.part is None else target.part.opened()
    return target.layout.opened(sizes.of_key(key)), str(part)


def _fields(folded: Folded, row: Row, sizes: OpenSizes | None) -> dict[str, Any]:
    """Return the fields of one rule, in a readable order."""
    fields: dict[str, Any] = {"key": folded.pattern}
    if row.outcome is Outcome.TIED:
        fields["tied"] = folded.texts[0]
    elif row.outcome is Outcome.DROPPED:
        fields["drop"] = row.note
    elif row.outcome is Outcome.REFUSED:
        fields["refuse"] = row.note
    else:
        places = [
            _target_fields(path, index, target, _layout_and_part(target, row.key, sizes))
            for path, index, target in zip(
                folded.texts[::2], folded.texts[1::2], row.targets, strict=True
            )
        ]
        fields |= places[0] if len(places) == 1 else {"to": places}
        fields["note"] = row.note
    fields |= {"kind": row.kind, "evidence": row.evidence}
    return {
        name: value for name, value in fields.items() if value != "" or name in ("drop", "refuse")
    }


def _target_fields(path: str, index: str, target: Target, texts: tuple[str, str]) -> dict[str, Any]:
    place = {"path": path}
    if target.part is not None:
        place["part"] = texts[1]
    if target.layout != UNCHANGED:
        place["transform"] = texts[0]
    if target.join != ALONE:
        place |= {"join": str(target.join), "index": index}
    return place


def _dump(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, width=110, allow_unicode=True))
