"""Sharding rules from a YAML file: which axis of an array is cut along which axis of a device mesh.

    params/.*/(query|key|value)/kernel: [null, model]
    params/.*embedding: [model, null]
    default: []

A rule is a regular expression, searched in the `/`-joined path, and a PartitionSpec. The spec has,
for each of the array's axes from the first on, a mesh axis, a list of mesh axes, or null. The first
matching rule decides. `default` applies to arrays without a matching rule; without a default they
are an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from converters.checkpoint.reader import TensorInfo
from converters.errors import ShardingError

SpecEntry = str | tuple[str, ...] | None
Spec = tuple[SpecEntry, ...]

_REMEDY = "see docs/weights/output.md for what a mesh and its rules look like"
_DEFAULT = "default"


@dataclass(frozen=True)
class ShardingRule:
    """Line of the rules.

    Attributes:
        pattern: the expression searched in the path; None for the default.
        spec: the mesh axes for each array axis, from the first on.
        where: the file and line, for messages.
    """

    pattern: re.Pattern[str] | None
    spec: Spec
    where: str


@dataclass(frozen=True)
class Partition:
    """Sharding of each array on a mesh.

    Attributes:
        mesh: the number of devices along each axis.
        specs: path → the mesh axes for each array axis, from the first on.
        defaulted: the paths without a matching rule.
        sides: path → the array's shape.
    """

    mesh: Mapping[str, int]
    specs: Mapping[str, Spec]
    defaulted: tuple[str, ...] = ()
    sides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def cuts(self) -> dict[str, tuple[int, ...]]:
        """Path → number of parts along each axis of the array (`write_pytree(cuts=…)`)."""
        return {
            path: tuple(
                _count(spec[axis], self.mesh) if axis < len(spec) else 1
                for axis in range(len(self.sides[path]))
            )
            for path, spec in self.specs.items()
        }


def parse_mesh(text: str) -> dict[str, int]:
    """Parse `data=4,model=2` into axis → number of devices.

    Raises:
        ShardingError: the text is invalid.
    """
    mesh: dict[str, int] = {}
    problems = []
    for part in text.split(","):
        name, _, count = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not count.isdecimal() or int(count) < 1:
            problems.append(f'the mesh "{text}": "{part}" is not NAME=NUMBER')
        elif name in mesh:
            problems.append(f'the mesh "{text}" has two axes "{name}"')
        else:
            mesh[name] = int(count)
    if problems:
        raise ShardingError(problems, _REMEDY)
    return mesh


def load_rules(path: Path, mesh: Mapping[str, int]) -> list[ShardingRule]:
    """Load and check the rules of a file.

    Raises:
        ShardingError: the file cannot be read or is invalid; the message lists all problems with
            their lines.
    """
    try:
        root = yaml.compose(path.read_text("utf-8"), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ShardingError([f"{path} cannot be read ({reason})"], _REMEDY) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or "the text"
        raise ShardingError([f"{where}: not YAML ({problem})"], _REMEDY) from None
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise ShardingError([f"{path} has no rules: it must map expressions to axes"], _REMEDY)
    rules: list[ShardingRule] = []
    problems: list[str] = []
    lines: dict[Any, int] = {}
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 1
        where = f"{path}:{line}"
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is None:
            problems.append(f"{where}: a rule is an expression and its axes")
        elif key in lines:
            problems.append(f'{where}: "{key}" is there already, in line {lines[key]}')
        else:
            lines[key] = line
            value = _plain(value_node)
            problems_of_rule = list(_wrong(key, value, mesh))
            problems += [f"{where}: {problem}" for problem in problems_of_rule]
            if not problems_of_rule:
                pattern = None if key == _DEFAULT else re.compile(key)
                rules.append(ShardingRule(pattern, tuple(_entry(entry) for entry in value), where))
    if problems:
        raise ShardingError(problems, _REMEDY)
    return rules


def _plain(node: Any, depth: int = 0) -> Any:
    """Return the value of a node: None, text, or a list of them in two levels; a dict for other nodes."""
    if isinstance(node, yaml.SequenceNode) and depth < 2:  # with aliases it may be endless
        return [_plain(child, depth + 1) for child in node.value]
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == "tag:yaml.org,2002:null" else node.value
    return {}


def _entry(value: Any) -> SpecEntry:
    return tuple(value) if isinstance(value, list) else value


def _wrong(key: str, value: Any, mesh: Mapping[str, int]) -> Iterator[str]:
    try:
        re.compile(key)
    except (re.error, RecursionError, OverflowError) as error:
        yield f'"{key}" is not a regular expression ({error})'
    if not isinstance(value, list):
        yield f'the axes of "{key}" must be a list, such as [null, model]'
        return
    used: list[str] = []
    for entry in value:
        names = entry if isinstance(entry, list) else [] if entry is None else [entry]
        if not all(isinstance(name, str) for name in names):
            yield f'what "{key}" cuts along is neither a mesh axis, nor a list of them, nor null'
            continue
        used += names
    for name in dict.fromkeys(used):
        if name not in mesh:
            yield f'the mesh has no axis "{name}" (it has {", ".join(mesh)})'
        elif used.count(name) > 1:
            yield f'the mesh axis "{name}" is used twice'


def partition(
    infos: Mapping[str, TensorInfo], mesh: Mapping[str, int], rules: Sequence[ShardingRule]
) -> Partition:
    """Return the sharding of arrays on a mesh.

    Raises:
        ShardingError: an array has no matching rule, an array lacks an axis, a size is not
            divisible, or a rule matches no array; the message lists all.
    """
    default = next((rule for rule in rules if rule.pattern is None), None)
    unused = {rule.where: rule for rule in rules if rule.pattern is not None}
    specs: dict[str, Spec] = {}
    defaulted: list[str] = []
    problems: list[str] = []
    for path, info in infos.items():
        rule = next((rule for rule in rules if rule.pattern and rule.pattern.search(path)), None)
        if rule is None:
            if default is None:
                problems.append(f'no rule matches {path}, and there is no "{_DEFAULT}"')
                continue
            defaulted.append(path)
            rule = default
        unused.pop(rule.where, None)
        misfits = list(_misfits(path, info.shape, rule.spec, mesh))
        problems += [f"{rule.where}: {problem}" for problem in misfits]
        specs[path] = rule.spec
    problems += [
        f'{rule.where}: no array matches "{rule.pattern.pattern}"'
        for rule in unused.values()
        if rule.pattern and not any(rule.pattern.search(path) for path in infos)
    ]
    if problems:
        raise ShardingError(problems, _REMEDY)
    shapes = {path: info.shape for path, info in infos.items()}
    return Partition(dict(mesh), specs, tuple(defaulted), shapes)


def _misfits(
    path: str, shape: tuple[int, ...], spec: Spec, mesh: Mapping[str, int]
) -> Iterator[str]:
    if len(spec) > len(shape):
        yield f"{path} has {len(shape)} axes, the rule {len(spec)}"
        return
    for axis, entry in enumerate(spec):
        count = _count(entry, mesh)
        if shape[axis] % count:
            yield f"axis {axis} of {path}, {shape[axis]}, cannot be divided by {count}"


def _count(entry: SpecEntry, mesh: Mapping[str, int]) -> int:
    names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    return math.prod(mesh[name] for name in names)
