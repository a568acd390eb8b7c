"""Partition rules: few regular expressions that name all weights of a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from migrate.port.mesh.choice import WeightSpec

Words = tuple[tuple[str, ...], ...]
# Characters of an expression that fits into a line of the file of rules.
_LONGEST = 66


@dataclass(frozen=True)
class PartitionRule:
    """A line of the rules.

    Attributes:
        pattern: regular expression for the end of a weight's path.
        spec: a mesh axis, or None, for each axis of the weight; () if the weight is whole on each device.
        why: where the rule comes from.
    """

    pattern: str
    spec: tuple[str | None, ...]
    why: str


def matches(pattern: str, path: str) -> bool:
    """Whether a rule names a weight: its expression matches the last names of the path."""
    return re.search(rf"(^|/)({pattern})$", path) is not None


def rules_of(specs: Mapping[str, WeightSpec]) -> tuple[PartitionRule, ...]:
    """Rules of which the first that matches a path has its spec.

    Args:
        specs: path without the collection → spec.
    """
    ends: dict[tuple[str, ...], WeightSpec] = {}
    for path, spec in specs.items():
        if not any(matches("/".join(end), path) for end in ends):
            ends[_end(path, specs)] = spec
    groups: dict[WeightSpec, list[Words]] = defaultdict(list)
    for end, spec in ends.items():
        groups[spec].append(tuple((word,) for word in end))
    rules = tuple(
        PartitionRule(pattern, spec.spec, spec.why)
        for spec in sorted(groups, key=_order)
        for words in _merged(groups[spec])
        for pattern in _patterns(words)
    )
    for path, spec in specs.items():
        first = next((rule for rule in rules if matches(rule.pattern, path)), None)
        if first is None or first.spec != spec.spec:
            return tuple(
                PartitionRule(re.escape(path), spec.spec, spec.why) for path, spec in specs.items()
            )
    return rules


def _order(spec: WeightSpec) -> tuple[int, str]:
    kinds = ("vocabulary", "heads", "hidden", "channels", "experts", "no tensor", "whole")
    first = next((at for at, kind in enumerate(kinds) if spec.why.startswith(kind)), len(kinds))
    return first, spec.why


def _numberless(path: str, kept: int) -> str:
    """A path as a regular expression with any number for all of its numbers but the last ones."""
    *parts, last = re.split(r"(?<=_)\d+(?=_|/|$)", path)
    numbers = re.findall(r"(?<=_)\d+(?=_|/|$)", path)
    general = [r"\d+" if at < len(numbers) - kept else number for at, number in enumerate(numbers)]
    return "".join(
        f"{re.escape(part)}{number}" for part, number in zip(parts, general, strict=True)
    ) + re.escape(last)


def _end(path: str, specs: Mapping[str, WeightSpec]) -> tuple[str, ...]:
    """An expression for the last names of a path, with as few names and numbers as no weight with another
    spec matches.
    """
    others = [other for other, spec in specs.items() if spec != specs[path]]
    words: tuple[str, ...] = ()
    for kept in range(path.count("_") + 1):
        words = tuple(_numberless(path, kept).split("/"))
        for count in range(min(2, len(words)), len(words) + 1):
            end = re.compile(rf"(^|/)({'/'.join(words[-count:])})$")
            if not any(map(end.search, others)):
                return words[-count:]
    return words


def _merged(lines: Sequence[Words]) -> list[Words]:
    """Lines that differ in one name only become one line."""
    merged = list(dict.fromkeys(lines))
    longest = max(map(len, merged))
    for place in (2, 1, *range(3, longest + 1)):
        groups: dict[tuple[Words, Words, int], list[tuple[str, ...]]] = defaultdict(list)
        for words in merged:
            at = len(words) - place
            key = (words[:at], words[at + 1 :], 0) if at >= 0 else (words, (), 1)
            groups[key].append(words[at] if at >= 0 else ())
        merged = [
            (*before, tuple(dict.fromkeys(word for each in names for word in each)), *after)
            if not short
            else before
            for (before, after, short), names in groups.items()
        ]
    return merged


def _patterns(words: Words) -> list[str]:
    """The expression of a line, or several where it is too long."""
    pattern = "/".join(each[0] if len(each) == 1 else f"({'|'.join(each)})" for each in words)
    most = max(range(len(words)), key=lambda at: len(words[at]))
    if len(pattern) <= _LONGEST or len(words[most]) == 1:
        return [pattern]
    half = len(words[most]) // 2
    return [
        part
        for some in (words[most][:half], words[most][half:])
        for part in _patterns((*words[:most], some, *words[most + 1 :]))
    ]
