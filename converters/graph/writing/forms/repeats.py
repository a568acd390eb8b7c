"""Statements that are written again and again as a loop: what a forward's `for _ in range(12)` recorded."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from converters.graph.expression import call, code
from converters.graph.writing.forms.loops import goes_on
from converters.graph.writing.holes import fill
from converters.graph.writing.original.names import source_tree

# Fewer turns than these, or fewer statements saved, read better as they are.
_TURNS, _SAVED = 3, 4


@dataclass(frozen=True)
class _TurnRun:
    """Turns of statements: where the first begins, of how many statements each is, how many there are."""

    start: int
    step: int
    count: int

    @property
    def saved(self) -> int:
        """Number of statements that a loop saves."""
        return (self.count - 1) * self.step


def repeated(
    body: Sequence[ast.stmt], result: ast.expr, forward: Any, collects: bool
) -> tuple[list[ast.stmt], ast.expr]:
    """Statements and a result, with statements that say the same turn by turn in a loop.

    Args:
        body: the statements.
        result: what is returned.
        forward: of the original, which says what a list is called.
        collects: whether what each turn gives to the results may be put into a list.
    """
    collected = _collected(body, result) if collects else frozenset()
    texts = [_text(statement, collected) for statement in body]
    for run in sorted(
        _runs(texts), key=lambda candidate: (-candidate.saved, candidate.step, candidate.start)
    ):
        looped = _Loop(body, result, run, collected, forward).made()
        if looped is not None:
            return looped
    return list(body), result


def _collected(body: Sequence[ast.stmt], result: ast.expr) -> frozenset[str]:
    """Names of values that nothing but the result reads."""
    stored, read = (Counter(_names(body, kind)) for kind in (ast.Store, ast.Load))
    result_reads = Counter(_names([result], ast.Load))
    parts = [part.id for part in _parts(result) if isinstance(part, ast.Name)]
    return frozenset(
        name for name in parts if stored[name] == result_reads[name] == 1 and not read[name]
    )


def _runs(texts: Sequence[str]) -> Iterator[_TurnRun]:
    size = len(texts)
    for step in range(1, size // _TURNS + 1):
        same = [texts[at] == texts[at + step] for at in range(size - step)]
        at = 0
        while at < len(same):
            end = at
            while end < len(same) and same[end]:
                end += 1
            run = _TurnRun(at, step, (end - at) // step + 1)
            if run.count >= _TURNS and run.saved >= _SAVED:
                yield from (
                    _TurnRun(at + by, step, run.count) for by in range((end - at) % step + 1)
                )
            at = end + 1


class _Loop:
    def __init__(
        self,
        body: Sequence[ast.stmt],
        result: ast.expr,
        run: _TurnRun,
        collected: frozenset[str],
        forward: Any,
    ) -> None:
        self.body, self.parts, self.result = body, list(_parts(result)), result
        self.collected, self.forward = collected, forward
        self.start = run.start
        self.turn = list(body[run.start : run.start + run.step])
        self.count = run.count + self._is_last(run.start + run.step * run.count)
        self.end = run.start + run.step * self.count

    def made(self) -> tuple[list[ast.stmt], ast.expr] | None:
        places = [
            at for at, statement in enumerate(self.turn) if _target(statement) in self.collected
        ]
        if len(places) > 1 or not goes_on(self.turn):
            return None
        before: list[ast.stmt] = []
        if places and (before := self._gathered(places[0])) == []:
            return None
        loop = ast.For(ast.Name("_", ast.Store()), call("range", self.count), self.turn, [])
        statements = [*self.body[: self.start], *before, loop, *self.body[self.end :]]
        return statements, self.result

    def _is_last(self, at: int) -> bool:
        """Whether the statements from here are a turn whose values are not all read any more."""
        last = [
            fill(statement, lambda hole: hole) for statement in self.body[at : at + len(self.turn)]
        ]
        later = {*_names([*self.body[at + len(self.turn) :], self.result], ast.Load)}
        for statement, other in zip(self.turn, last, strict=False):
            for a, b in zip(_stores(statement), _stores(other), strict=False):
                if b.id == "_" and a.id not in later:
                    b.id = a.id
        said = [
            [_text(statement, self.collected) for statement in turn] for turn in (self.turn, last)
        ]
        return said[0] == said[1]

    def _gathered(self, place: int) -> list[ast.stmt]:
        """Have what each turn gives to the results in a list: the statement that begins it."""
        each = [
            _target(self.body[at]) for at in range(self.start + place, self.end, len(self.turn))
        ]
        called = [part.id if isinstance(part, ast.Name) else "" for part in self.parts]
        width = len(each)
        first = next((at for at in range(len(called)) if called[at : at + width] == each), -1)
        if first < 0:
            return []
        known = {_target(statement) for statement in self.body[: self.start]} & self.collected
        begun = first
        while begun and called[begun - 1] in known:
            begun -= 1
        name = self._list_name(each[0])
        statement = self.turn[place]
        assert isinstance(statement, ast.Assign)
        self.turn[place] = ast.Expr(call(f"{name}.append", statement.value))
        rest = [*self.parts[:begun], *self.parts[first + width :]]
        whole = ast.Name(name, ast.Load())
        self.result = call("tuple", whole)
        if rest:
            spread = ast.Starred(whole, ast.Load())
            self.result = ast.Tuple([*rest[:begun], spread, *rest[begun:]], ast.Load())
        target = ast.Name(name, ast.Store())
        start = ast.List(self.parts[begun:first], ast.Load())
        return [ast.AnnAssign(target, code("list[jax.Array]"), start, 1)]

    def _list_name(self, name: str) -> str:
        """The original's name of the list that it appends a value to."""
        taken = {*_names([*self.body, self.result], ast.Store)}
        for node in ast.walk(source_tree(self.forward)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=found), attr="append"),
                    args=[ast.Name(id=one)],
                ) if found not in taken and (name == one or name.startswith(f"{one}_")):
                    return found
        return f"{name}_of_turns"


def _parts(result: ast.expr) -> Sequence[ast.expr]:
    return result.elts if isinstance(result, ast.Tuple) else ()


def _names(trees: Sequence[ast.AST], kind: type) -> Iterator[str]:
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, kind):
                yield node.id


def _stores(statement: ast.stmt) -> list[ast.Name]:
    names_stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return [name for name in names_stored if isinstance(name.ctx, ast.Store)]


def _target(statement: ast.stmt) -> str:
    """`x = …` → "x"."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def _text(statement: ast.stmt, collected: frozenset[str]) -> str:
    """Text of a statement. A value that goes to the results has no name yet."""
    if isinstance(statement, ast.Assign) and _target(statement) in collected:
        return f"append {ast.dump(statement.value)}"
    return ast.dump(statement)
