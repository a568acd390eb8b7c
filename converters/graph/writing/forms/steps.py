"""Turns that go over an array step by step: `for i in range(5): h, c = self.cell(x[:, i], h, c)`.

The turns differ in numbers that follow from their number, and in the names of what they give. What each
turn gives is read by the next turn, after the last, or all of it in a list that is put together later.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from converters.graph.expression import call, code
from converters.graph.writing.forms.numbered import by_number
from converters.graph.writing.holes import fill
from converters.graph.writing.original.names import source_tree

# The fewest turns, and the most statements of one.
_TURNS, _LONGEST = 3, 8
# How many windows of a forward are tried.
_WINDOWS = 16
_COUNTERS = ("i", "step", "number")
_RESULT = "@result"
# A value that a turn stores, by its place in the turn and the turn's number; of the turn before.
_STORED = re.compile(r"@(\d+)@(\d+)")


def stepped(
    body: Sequence[ast.stmt], result: ast.expr, forward: Any
) -> tuple[list[ast.stmt], ast.expr]:
    """Statements and a result, with turns that go over an array in a loop, where that is shorter.

    A loop that puts values into a list may be as long as the turns, which need a name for each.

    Args:
        body: the statements.
        result: what is returned.
        forward: of the original, which says what a list is called.
    """
    whole = [*body, ast.Assign([ast.Name(_RESULT, ast.Store())], result)]
    for count, start, step in _windows(whole):
        looped = _Steps(whole, start, step, count, forward).made()
        if looped is None:
            continue
        gathers = any(isinstance(statement, ast.AnnAssign) for statement in looped)
        if _size(looped) < len(whole) + gathers:
            *first, last = looped
            assert isinstance(last, ast.Assign)
            return first, last.value
    return list(body), result


def _size(body: Sequence[ast.stmt]) -> int:
    return sum(isinstance(node, ast.stmt) for statement in body for node in ast.walk(statement))


def _windows(body: Sequence[ast.stmt]) -> Iterator[tuple[int, int, int]]:
    """The windows whose turns have the same kinds of statements, long ones first: (turns, start, statements
    of a turn).
    """
    kinds, loose = (
        [_kind(statement) for statement in body],
        [_loose_kind(statement) for statement in body],
    )
    windows = []
    for step in range(1, min(_LONGEST, len(body) // _TURNS) + 1):
        for start in range(len(body) - _TURNS * step + 1):
            second = kinds[start + step : start + 2 * step]
            # The first turn may start from anything.
            if (
                None in second
                or loose[start : start + step] != loose[start + step : start + 2 * step]
            ):
                continue
            count = 2
            while kinds[start + count * step : start + (count + 1) * step] == second:
                count += 1
            if count >= _TURNS:
                windows.append((count, start, step))
    yield from sorted(windows, key=lambda window: (-window[0] * window[2], window[2], window[1]))[
        :_WINDOWS
    ]


def _kind(statement: ast.stmt) -> Any:
    """Key of statements at one position of the turns; None if the statement is in no turn."""
    names = _targets(statement)
    if not names or not isinstance(statement, ast.Assign):
        return None
    return re.sub(r"(id|value)=('\w+'|-?\d+)", r"\1", ast.dump(statement))


def _loose_kind(statement: ast.stmt) -> Any:
    """Key that the first turn's statement shares with the other turns."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    call = ast.dump(value.func) if isinstance(value, ast.Call) else ""
    return len(_targets(statement)), type(value), call


def _targets(statement: ast.stmt) -> list[str]:
    """The names that a statement stores, if these are all that it does."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    target = statement.targets[0]
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else []


class _Steps:
    """A window of statements as turns of a loop.

    Attributes:
        called: place of a value in a turn → its name in the loop.
        starts: place of a value that goes on to the next turn → what it is before the first.
    """

    def __init__(
        self, body: Sequence[ast.stmt], start: int, step: int, count: int, forward: Any
    ) -> None:
        self.body = list(body)
        self.start, self.step, self.count = start, step, count
        self.end = start + step * count
        self.forward = forward
        self.names = {*_names(self.body)}
        first = [
            name for statement in self.body[start : start + step] for name in _targets(statement)
        ]
        self.called = dict(enumerate(first))
        self.starts: dict[int, ast.expr] = {}

    def made(self) -> list[ast.stmt] | None:
        """All statements, with the loop; None where these are no turns of one."""
        named = [name for name in self.called.values() if name != "_"]
        counter = next((name for name in _COUNTERS if name not in self.names), "")
        body = self._unique()
        if body is None or not counter or len(named) > len({*named}):
            return None
        turns = [body[at : at + self.step] for at in range(self.start, self.end, self.step)]
        rest = body[self.end :]
        turns = [
            [_renamed(statement, partial(_relative, turn=at)) for statement in turn]
            for at, turn in enumerate(turns)
        ]
        for place, (first, second) in enumerate(zip(turns[0], turns[1], strict=True)):
            begun = self._begun(first, second)
            if begun is None:
                return None
            turns[0][place] = begun
        turn = by_number(turns, counter) if self.starts else None
        if turn is None or counter not in _names(turn) or not self._goes_on(turn):
            return None
        lists: dict[str, ast.expr] = {}
        gather = _Gathered(self, lists)
        rest = [gather.visit(statement) for statement in rest]
        if self._is_used_otherwise(turn, rest):
            return None
        final = [_renamed(statement, self._name) for statement in (*turn, *rest)]
        turn, rest = final[: len(turn)], final[len(turn) :]
        before: list[ast.stmt] = []
        alike: dict[str, tuple[list[ast.expr], ast.expr]] = {}
        for place, value in self.starts.items():
            if not (isinstance(value, ast.Name) and value.id == self.called[place]):
                names, _ = alike.setdefault(ast.dump(value), ([], value))
                names.append(ast.Name(self.called[place], ast.Store()))
        before += [ast.Assign(names, value) for names, value in alike.values()]
        for name, value in lists.items():
            target = ast.Name(name, ast.Store())
            before.append(
                ast.AnnAssign(target, code("list[jax.Array]"), ast.List([], ast.Load()), 1)
            )
            turn.append(ast.Expr(call(f"{name}.append", _renamed(value, self._name))))
        loop = ast.For(ast.Name(counter, ast.Store()), call("range", self.count), turn, [])
        return [*self.body[: self.start], *before, loop, *rest]

    def _unique(self) -> list[ast.stmt] | None:
        """The statements, each value that the turns store under a name of its own: `@place@turn`."""
        known: dict[str, str] = {}
        statements: list[ast.stmt] = []
        for at, statement in enumerate(self.body):
            now: ast.stmt = _renamed(statement, partial(_looked_up, known), ast.Load)
            stored = {*_names([statement], ast.Store)}
            if self.start <= at < self.end:
                turn, place = divmod(at - self.start, self.step)
                first = sum(
                    len(_targets(statement))
                    for statement in self.body[self.start : self.start + place]
                )
                names = {
                    name: f"@{first + number}@{turn}"
                    for number, name in enumerate(_targets(statement))
                }
                if _RESULT in names or len(names) < len(_targets(statement)):
                    return None
                now = _renamed(now, partial(_looked_up, names), ast.Store)
                known |= names
            elif at >= self.end:
                known = {name: value for name, value in known.items() if name not in stored}
                if any(isinstance(child, ast.stmt) for child in ast.iter_child_nodes(statement)):
                    return None
            statements.append(now)
        return statements

    def _begun(self, first: Any, second: Any) -> Any:
        """The first turn, reading one before it where the second reads the first; None if it is another."""
        if isinstance(second, ast.Name) and second.id.endswith("@before"):
            place = int(second.id.split("@")[1])
            start = self.starts.setdefault(place, first)
            if ast.dump(start) != ast.dump(first) or any("@" in name for name in _names([first])):
                return None
            return ast.Name(second.id, ast.Load())
        if type(first) is not type(second):
            return None
        if isinstance(first, list):
            parts = [self._begun(a, b) for a, b in zip(first, second, strict=False)]
            return (
                None if len(first) != len(second) or any(part is None for part in parts) else parts
            )
        if not isinstance(first, ast.AST) or not first._fields:
            return first
        fields = {}
        for name in first._fields:
            value, other = getattr(first, name, None), getattr(second, name, None)
            fields[name] = None if value is None else self._begun(value, other)
            if value is not None and fields[name] is None:
                return None
        return type(first)(**fields)

    def _goes_on(self, turn: Sequence[ast.stmt]) -> bool:
        """Whether a turn reads nothing of the one before once it has stored its own."""
        done: set[int] = set()
        for statement in turn:
            read = {int(name.split("@")[1]) for name in _names([statement]) if "@before" in name}
            if read & done or not read <= self.starts.keys():
                return False
            done |= {
                int(name.split("@")[1]) for name in _names([statement], ast.Store) if "@" in name
            }
        return True

    def _is_used_otherwise(self, turn: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> bool:
        """Whether a value of a turn but the last is read later, or a name of the loop stands for another."""
        for name in _names(rest):
            match = _STORED.fullmatch(name)
            if match and int(match[2]) != self.count - 1:
                return True
        taken = {*self.called.values()} - {"_"}
        begun = [name for value in self.starts.values() for name in _names([value])]
        others = {
            name
            for place, value in self.starts.items()
            for name in _names([value])
            if name != self.called[place]
        }
        return bool(taken & ({*_names([*turn, *rest])} | others)) or (
            len(begun) > len({*begun}) and bool(taken & {*begun})
        )

    def _name(self, name: str) -> str:
        """The final name of a value."""
        parts = name.split("@")
        return self.called[int(parts[1])] if len(parts) > 1 and parts[1].isdigit() else name

    def list_name(self, taken: Sequence[str]) -> str:
        """The original's name of a list that it appends to."""
        lists = []
        for node in ast.walk(source_tree(self.forward)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")):
                    lists.append(name)
        more = ("outputs", *(f"outputs_{number}" for number in range(2, 99)))
        return next(
            name for name in (*lists, *more) if name not in taken and name not in self.names
        )


class _Gathered(ast.NodeTransformer):
    """Lists of a value of each turn become names of lists that the turns append to."""

    def __init__(self, steps: _Steps, lists: dict[str, ast.expr]) -> None:
        self.steps, self.lists = steps, lists

    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return self._name(node.elts) or node

    def _name(self, parts: Sequence[ast.expr]) -> ast.expr | None:
        if len(parts) != self.steps.count:
            return None
        own = []
        for turn, part in enumerate(parts):
            read = [match for name in _names([part]) if (match := _STORED.fullmatch(name))]
            if not read or any(int(match[2]) != turn for match in read):
                return None
            own.append(_renamed(part, partial(_relative, turn=turn)))
        if len({ast.dump(part) for part in own}) > 1:
            return None
        name = self.steps.list_name([*self.lists])
        self.lists[name] = own[0]
        return ast.Name(name, ast.Load())


def _looked_up(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def _relative(name: str, turn: int) -> str:
    """A value by its place alone, where it is of this turn; `@before` where it is of the one before."""
    match = _STORED.fullmatch(name)
    if match is None:
        return name
    ago = turn - int(match[2])
    return (
        f"@{match[1]}"
        if not ago
        else f"@{match[1]}@before"
        if ago == 1
        else f"@{match[1]}@{ago}@ago"
    )


def _names(trees: Sequence[ast.AST], kind: type[ast.expr_context] = ast.Load) -> list[str]:
    return [
        node.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, kind)
    ]


def _renamed(
    tree: Any,
    name: Callable[[str], str],
    kind: type[ast.expr_context] = ast.expr_context,
) -> Any:
    """A copy with other names."""

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name(name(node.id), node.ctx) if isinstance(node.ctx, kind) else node

    return Renamed().visit(fill(tree, lambda hole: hole))
