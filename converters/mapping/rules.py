"""Rule of a mapping file: the keys that it matches, and their outcome."""

from __future__ import annotations

import re
from dataclasses import dataclass

from converters.checkpoint.cast import FLOATING
from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Join
from converters.layers.layout import UNCHANGED, Layout, Part, Share
from converters.mapping.leaves import Piece
from converters.mapping.module_tree import Outcome, Slot, Target

_REFERENCE = re.compile(r"\\(?:(\d+)|g<(\w+)>|(.?))")


@dataclass(frozen=True)
class TargetRule:
    r"""Target of a tensor or a part of it; path and index may refer to the key's groups.

    Attributes:
        path: the path, as in "params/encoder/layer_\1/kernel".
        layout: the layout from torch's arrangement to Flax's.
        part: the part of the tensor; None for all of it.
        join: the join of the array's pieces.
        index: the position among the pieces: a number, or a reference.
    """

    path: str
    layout: Layout = UNCHANGED
    part: Part | Share | None = None
    join: Join = ALONE
    index: str = "0"

    def target(self, match: re.Match[str], shape: tuple[int, ...]) -> Target:
        """Return the target for one key, of a tensor of this shape.

        Raises:
            ValueError: the index is not a number, or the tensor has no such parts.
        """
        index = match.expand(self.index)
        if not index.isdecimal():
            raise ValueError(f"the index {index!r} is not a number")
        part = self.part.at(shape) if isinstance(self.part, Share) else self.part
        layout = self.layout.at(shape if part is None else part.shape(shape))
        return Target(match.expand(self.path), layout, part, self.join, int(index))


@dataclass(frozen=True)
class MappingRule:
    """Outcome of the keys that a regular expression matches as a whole.

    Attributes:
        line: its first line in the file, from 1.
        pattern: the expression.
        outcome: mapped, tied, dropped or refused.
        targets: the targets of mapped keys.
        tied: the key whose tensor tied keys share, with references.
        reason: the reason for dropped and refused keys.
        kind: layer kind, for the report.
        note: a note for the report.
        evidence: the basis; "" for the rule itself.
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
        """The only key that the rule matches; None if its pattern has groups or operators."""
        return literal(self.pattern.pattern)

    def slot(self, key: str, info: TensorInfo | None, source: str) -> Slot:
        """Return the slot of a key that the pattern matches; `info` is None if the checkpoint lacks
        the key.

        Args:
            key: the key.
            info: its shape and dtype.
            source: the mapping file, for the evidence.

        Raises:
            ValueError: a transform or part does not fit the shape, or an index is not a number.
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
        targets = tuple(rule.target(match, shape) for rule in self.targets)
        for target in targets:
            Piece(key, target.layout, target.part).shape(shape)
            if target.layout.computes and info is not None and info.dtype not in FLOATING:
                raise ValueError(f"{target.layout} of {info.dtype}: only floating numbers can be")
        return Slot(key, shape, self.kind, Outcome.MAPPED, targets, self.note, "", evidence)


def literal(pattern: str) -> str | None:
    """Return the only text that a pattern matches, if it has no operators except escapes."""
    text = re.sub(r"\\([^\w\s])", "", pattern)
    if re.search(r"[\\.^$*+?{}\[\]|()]", text):
        return None
    return re.sub(r"\\([^\w\s])", r"\1", pattern)


def check_references(template: str, pattern: re.Pattern[str]) -> str:
    r"""Return the problem with the references (`\1`, `\g<name>`) of a path, or ""."""
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
