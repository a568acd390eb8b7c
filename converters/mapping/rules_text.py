"""Parser of a mapping file. It reports all problems at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import yaml

from converters.layers.join import ALONE, ComputedBefore, Join
from converters.layers.layout import UNCHANGED
from converters.layers.text import parse_join, parse_layout, parse_share
from converters.mapping.module_tree import Outcome
from converters.mapping.paths import Api
from converters.mapping.rules import MappingRule, TargetRule, check_references

VERSION = 1
APIS = ("linen", "nnx")
TOP = ("version", "api", "checkpoint", "sizes", "rules")
TARGET = ("path", "transform", "part", "join", "index")
OUTCOMES = ("path", "to", "tied", "drop", "refuse")
RULE = ("key", "to", "tied", "drop", "refuse", "kind", "note", "evidence", *TARGET)

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class ParsedRules:
    """Result of parsing a mapping file.

    Attributes:
        rules: the rules in file order.
        api: whose names the paths are made of.
        problems: the problems, each with its line.
    """

    rules: tuple[MappingRule, ...]
    api: Api
    problems: tuple[str, ...]


def parse_rules(text: str, sizes: Mapping[str, Any] | None = None) -> ParsedRules:
    """Parse the rules of a text. Nothing is raised: problems are listed.

    Args:
        text: the text.
        sizes: values in place of those that its `sizes` have.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return ParsedRules((), "linen", (f"line {line}: {error.problem}",))
    except (yaml.YAMLError, RecursionError) as error:
        return ParsedRules((), "linen", (f"line 1: {' '.join(str(error).split())}",))
    reader = _Reader(sizes_set=sizes or {})
    rules = reader.file(node)
    return ParsedRules(tuple(rules), reader.api, tuple(reader.problems))


@dataclass
class _Reader:
    problems: list[str] = field(default_factory=list)
    api: Api = "linen"
    sizes_set: Mapping[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)

    def file(self, node: Any) -> list[MappingRule]:
        top = self.fields(node, TOP, "the file", 1)
        if top is None:
            return []
        version = self.scalar(top, "version")
        if version != str(VERSION):
            line = _line(top["version"]) if "version" in top else 1
            self.wrong(line, f"version is {version or 'missing'}; this program reads {VERSION}")
        api = self.scalar(top, "api") or "linen"
        if api not in APIS:
            self.wrong(_line(top["api"]), f"api is {api}; it is one of {', '.join(APIS)}")
        self.api = cast(Api, api if api in APIS else "linen")
        self.sizes = self.read_sizes(top)
        listed = top.get("rules")
        if not isinstance(listed, yaml.SequenceNode):
            self.wrong(_line(listed) if listed else 1, "rules is missing, or no list")
            return []
        rules = [self.rule(entry) for entry in listed.value]
        return [rule for rule in rules if rule is not None]

    def read_sizes(self, top: dict[str, Any]) -> dict[str, Any]:
        """Return name → number, or list of numbers, of the sizes that transforms name."""
        node = top.get("sizes")
        if node is None:
            return {}
        try:
            sizes = yaml.safe_load(yaml.serialize(node))
        except yaml.YAMLError:
            sizes = None
        numbers = sizes.values() if isinstance(sizes, dict) else [None]
        for value in numbers:
            listed = value if isinstance(value, list) else [value]
            if not all(type(number) in (int, float) for number in listed):
                self.wrong(_line(node), "sizes is no mapping of names to numbers")
                return {}
        return {str(name): self.sizes_set.get(str(name), value) for name, value in sizes.items()}

    def rule(self, node: Any) -> MappingRule | None:
        line = _line(node)
        before = len(self.problems)
        fields = self.fields(node, RULE, "a rule", line)
        if fields is None:
            return None
        pattern = self.parsed(fields, "key", _compiled)
        if "key" not in fields:
            self.wrong(line, "a rule without a key")
        named = [name for name in OUTCOMES if name in fields]
        if len(named) != 1:
            has = " and ".join(named) if named else "none"
            self.wrong(line, f"a rule has one of {', '.join(OUTCOMES)}; this one has {has}")
        loose = [name for name in TARGET if name in fields and "path" not in fields]
        if loose:
            self.wrong(_line(fields[loose[0]]), f"{', '.join(loose)} without a path")
        if pattern is None or len(self.problems) > before:
            return None
        targets = self.targets(fields, pattern)
        tied = self.scalar(fields, "tied") or ""
        self.references(fields, "tied", tied, pattern)
        if len(self.problems) > before:
            return None
        outcome = {"tied": Outcome.TIED, "drop": Outcome.DROPPED, "refuse": Outcome.REFUSED}
        return MappingRule(
            line,
            pattern,
            outcome.get(named[0], Outcome.MAPPED),
            targets,
            tied,
            self.scalar(fields, "drop") or self.scalar(fields, "refuse") or "",
            self.scalar(fields, "kind") or "",
            self.scalar(fields, "note") or "",
            self.scalar(fields, "evidence") or "",
        )

    def targets(self, fields: dict[str, Any], pattern: re.Pattern[str]) -> tuple[TargetRule, ...]:
        if "path" in fields:
            targets = [self.target(fields, pattern)]
        elif "to" not in fields:
            return ()
        elif not isinstance(fields["to"], yaml.SequenceNode) or not fields["to"].value:
            self.wrong(_line(fields["to"]), "to is no list of places")
            return ()
        else:
            targets = []
            for node in fields["to"].value:
                target_fields = self.fields(node, TARGET, "a place", _line(node))
                if target_fields is not None and "path" not in target_fields:
                    self.wrong(_line(node), "a place without a path")
                elif target_fields is not None:
                    targets.append(self.target(target_fields, pattern))
        return tuple(targets)

    def target(self, fields: dict[str, Any], pattern: re.Pattern[str]) -> TargetRule:
        path = self.scalar(fields, "path") or ""
        if not all(path.split("/")):
            self.wrong(_line(fields["path"]), f"the path {path!r} has an empty part")
        index = self.scalar(fields, "index") or "0"
        if not re.fullmatch(r"\d+|\\\d+|\\g<\w+>", index):
            self.wrong(_line(fields["index"]), f"the index {index!r} is no number or reference")
        else:
            self.references(fields, "index", index, pattern)
        self.references(fields, "path", path, pattern)
        return TargetRule(
            path,
            self.parsed(fields, "transform", partial(parse_layout, sizes=self.sizes)) or UNCHANGED,
            self.parsed(fields, "part", partial(parse_share, sizes=self.sizes)),
            self.parsed(fields, "join", _join) or ALONE,
            index,
        )

    def references(
        self, fields: dict[str, Any], name: str, template: str, pattern: re.Pattern[str]
    ) -> None:
        problem = check_references(template, pattern)
        if problem:
            self.wrong(_line(fields[name]), f"{name}: {problem}")

    def parsed(
        self, fields: dict[str, Any], name: str, parse: Callable[[str], _Parsed]
    ) -> _Parsed | None:
        text = self.scalar(fields, name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.wrong(_line(fields[name]), f"{name}: {error}")
            return None

    def fields(
        self, node: Any, known: tuple[str, ...], what: str, line: int
    ) -> dict[str, Any] | None:
        """Return name → node of a mapping; unknown and repeated names are recorded as problems."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong(line, f"{what} is no mapping of names to values")
            return None
        nodes: dict[str, Any] = {}
        for name_node, value in node.value:
            name = str(name_node.value)
            if name not in known:
                self.wrong(_line(name_node), f"unknown field {name}; there are {', '.join(known)}")
            elif name in nodes:
                self.wrong(_line(name_node), f"{name} is given twice")
            else:
                nodes[name] = value
        return nodes

    def scalar(self, fields: dict[str, Any], name: str) -> str | None:
        node = fields.get(name)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(_line(node), f"{name} is no single value")
            return None
        return str(node.value)

    def wrong(self, line: int, what: str) -> None:
        text = f"line {line}: {what}"
        if text not in self.problems:
            self.problems.append(text)


def _join(text: str) -> Join:
    join = parse_join(text)
    if isinstance(join, ComputedBefore):
        raise ValueError("values that torch computes need the module: --model")
    return join


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no regular expression ({error})") from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
