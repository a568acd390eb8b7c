"""One rule of a mapping file: which keys it is about, and what becomes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from converters.checkpoint.cast import FLOATING
from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Join
from converters.layers.layout import UNCHANGED, Layout, Part
from converters.mapping.leaves import Piece
from converters.mapping.module_tree import Outcome, Slot, Target

_REFERENCE = re.compile(r"\\(?:(\d+)|g<(\w+)>|(.?))")


@dataclass(frozen=True)
class TargetRule:
    r"""Where a tensor or a part of it goes, its path and place with references to the key's groups.

    Attributes:
        path: "params/encoder/layer_\1/kernel".
        layout: from torch's arrangement to Flax's.
        part: what of the tensor; None: all of it.
        join: how the array is put together.
        index: the position among its pieces: a number, or a reference.
    """

    path: str
    layout: Layout = UNCHANGED
    part: Part | None = None
    join: Join = ALONE
    index: str = "0"

    def target(self, match: re.Match[str]) -> Target:
        """The place for one key.

        Raises:
            ValueError: the index is no number.
        """
        index = match.expand(self.index)
        if not index.isdecimal():
            raise ValueError(f"the index {index!r} is no number")
        return Target(match.expand(self.path), self.layout, self.part, self.join, int(index))


@dataclass(frozen=True)
class MappingRule:
    """What becomes of the keys that a regular expression matches as a whole.

    Attributes:
        line: where it begins in its file, from 1.
        pattern: the expression.
        outcome: mapped, tied, dropped or refused.
        targets: of mapped keys, where they go.
        tied: of tied keys, the key whose tensor they are, with references.
        reason: of dropped and refused ones.
        kind: layer kind, for the report.
        note: what to know, for the report.
        evidence: what says so; "" stands for the rule itself.
    """

    line: int
    pattern: re.Pattern[str]
    outcome: Outcome
    targets: tuple[TargetRule, ...] = ()
    tied: str = ""
    reason: str = ""
    kind: str = ""
    note: str = ""
    evidence: str = ""

    @property
    def key(self) -> str | None:
        """The one key that the rule is about; None if its pattern has groups or signs."""
        return literal(self.pattern.pattern)

    def slot(self, key: str, info: TensorInfo | None, source: str) -> Slot:
        """The slot of a key that the pattern matches; `info` is None if the checkpoint lacks it.

        Args:
            key: the key.
            info: its shape and dtype.
            source: the mapping file, for the evidence.

        Raises:
            ValueError: a transform or part does not fit the shape, or a place is no number.
        """
        shape = info.shape if info else ()
        evidence = self.evidence or f"{source}, line {self.line}"
        match = self.pattern.fullmatch(key)
        assert match is not None, f"{key} is not matched by line {self.line}"
        if self.outcome in (Outcome.DROPPED, Outcome.REFUSED):
            return Slot(key, shape, self.kind, self.outcome, (), self.reason, "", evidence)
        if self.outcome is Outcome.TIED:
            tied = match.expand(self.tied)
            return Slot(key, shape, self.kind, Outcome.MAPPED, (), self.note, tied, evidence)
        targets = tuple(rule.target(match) for rule in self.targets)
        for target in targets:
            Piece(key, target.layout, target.part).shape(shape)
            if target.layout.computes and info is not None and info.dtype not in FLOATING:
                raise ValueError(f"{target.layout} of {info.dtype}: only floating numbers can be")
        return Slot(key, shape, self.kind, Outcome.MAPPED, targets, self.note, "", evidence)


def literal(pattern: str) -> str | None:
    """The one text that a pattern matches, if it has no other signs than escaped ones."""
    text = re.sub(r"\\([^\w\s])", "", pattern)
    if re.search(r"[\\.^$*+?{}\[\]|()]", text):
        return None
    return re.sub(r"\\([^\w\s])", r"\1", pattern)


def check_references(template: str, pattern: re.Pattern[str]) -> str:
    r"""What is wrong with the references (`\1`, `\g<name>`) of a path; "" if nothing is."""
    for number, name, other in _REFERENCE.findall(template):
        if number and int(number) > pattern.groups:
            return f"\\{number} refers to a group that the key's expression does not have"
        if name and name not in pattern.groupindex and not name.isdecimal():
            return f"\\g<{name}> refers to a group that the key's expression does not have"
        if name.isdecimal() and int(name) > pattern.groups:
            return f"\\g<{name}> refers to a group that the key's expression does not have"
        if not number and not name:
            return f"\\{other} is no reference to a group"
    return ""
