"""Names for the values of a forward, as the original has them, and sizes by the tensors that show them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sympy

from converters.graph.expression import Hole, as_code, call, code
from converters.graph.ir import Fact, Frame, Free, Held, Ref
from converters.graph.recording.trace import GraphError
from converters.graph.writing.forms.shapes import with_shapes
from converters.graph.writing.holes import fill, filled, refs
from converters.graph.writing.layout import LAST, Layout, as_torch, moved
from converters.graph.writing.original import names
from converters.graph.writing.original.comments import above, commented, of, speaks_of_axes
from converters.graph.writing.statements import Statement, has_other_turn, is_turn, place_on_line
from converters.graph.writing.tidy import tidied


@dataclass(frozen=True)
class Scope:
    """Facts about a forward that naming needs.

    Attributes:
        where: the module, for messages.
        forward: forward of the original.
        arguments: name → number of the tensor, in order.
        facts: shape and dtype of every tensor.
        layouts: tensors that are not in torch's order.
        lying: results that are returned in their own layout.
        placed: expressions that were inlined into others, by their tensor.
        taken: names that stand for something else.
        wanted: the original's name of a tensor that a statement gives; "" if it has none.
        held: a parameter or buffer as an expression.
        size: an argument for a size that no tensor shows; None if there can be none.
        maybe: tensors that may be None: only what is computed from them reads their sizes.
    """

    where: str
    forward: Any
    arguments: Sequence[tuple[str, int]]
    facts: Mapping[int, Fact]
    layouts: Mapping[int, Layout]
    lying: Set[int]
    placed: Mapping[int, ast.expr]
    taken: Set[str]
    wanted: Callable[[Statement, int], str]
    held: Callable[[Held], Any]
    size: Callable[[sympy.Expr], str] | None
    maybe: Set[int] = frozenset()


def named(
    scope: Scope, statements: Sequence[Statement], results: Any
) -> tuple[list[ast.stmt], ast.expr]:
    """Statements and what is returned as source: names as in the original, where two values do not need one
    name at one time.
    """
    return _Naming(scope, statements, results).run()


class _Naming:
    def __init__(self, scope: Scope, statements: Sequence[Statement], results: Any) -> None:
        self.scope = scope
        self.facts = scope.facts
        self.arguments = scope.arguments
        self.statements = statements
        self.results = results
        # Statements of the original whose comments are written.
        self.commented: set[ast.stmt | None] = set()

    def run(self) -> tuple[list[ast.stmt], ast.expr]:
        statements = self.statements
        known = [number for _, number in self.arguments]
        for statement in statements:
            statement.value = self._sized(statement.value, known)
            known += [out for out in statement.outs if out >= 0]
        result = self._sized(self._result(self.results), known)
        last: dict[int, int] = {}
        for index, statement in enumerate(statements):
            for ref in refs(statement.value):
                last[ref] = index
        for ref in refs(result):
            last[ref] = len(statements)
        names_of = {number: name for name, number in self.arguments}
        holder = dict(self.arguments)
        body: list[ast.stmt] = []
        lines: list[Sequence[Frame]] = []
        for index, statement in enumerate(statements):
            value = self._named(statement.value, names_of)
            targets: list[ast.expr] = []
            for place, out in enumerate(statement.outs):
                if out not in last:
                    targets.append(ast.Name("_", ast.Store()))
                    continue
                wanted = self._wanted(statement, place)
                kept = self._kept(wanted, index, holder, last)
                if kept:
                    body.append(
                        ast.Assign([ast.Name(kept, ast.Store())], ast.Name(wanted, ast.Load()))
                    )
                    lines.append(())
                    holder[kept] = holder.pop(wanted)
                    names_of[holder[kept]] = kept
                name = self._free_name(wanted, index, holder, last)
                holder[name] = out
                names_of[out] = name
                targets.append(ast.Name(name, ast.Store()))
            single = statement.single and len(targets) == 1
            target = (
                targets[0]
                if single
                else _nested(iter(targets), statement.nested or (None,) * len(targets))
            )
            body.append(commented(ast.Assign([target], value), self._comments(statement)))
            lines.append(statement.frames)
        taken_names = {*self.scope.taken, *(name for name, _ in self.arguments)}
        body = with_shapes(body, lines, taken_names)
        final = self._named(result, names_of)
        while body and isinstance(final, ast.Name) and isinstance(body[-1], ast.Assign):
            last_one = body[-1]
            target = last_one.targets[0]
            same = isinstance(target, ast.Name) and target.id == final.id
            if not same or any(map(is_turn, ast.walk(last_one.value))):
                break
            if has_other_turn(last_one.value, body[:-1]):
                break
            body.pop()
            final = commented(last_one.value, of(last_one))
        return [commented(tidied(node), of(node)) for node in body], commented(
            tidied(final), of(final)
        )

    def _comments(self, statement: Statement) -> tuple[str, ...]:
        """The original's comments on its statement and on those within it, once; not those on axes, where
        these lie otherwise.
        """
        turned = any(
            number in self.scope.layouts for number in (*statement.outs, *refs(statement.value))
        )
        comments: list[str] = []
        for line in (*statement.inner, *statement.frames[-1:]):
            said = names.statement(line)
            if said is None or said in self.commented:
                continue
            own = above(line)
            if turned and any(map(speaks_of_axes, own)):
                continue
            self.commented.add(said)
            comments += own
        return tuple(comments)

    def _result(self, results: Any) -> ast.expr:
        match results:
            case Ref():
                value = filled(Hole(results), self.scope.placed)
                if results.id in self.scope.lying:
                    return value
                rank = len(self.facts[results.id].shape)
                return as_torch(value, self.scope.layouts.get(results.id), rank)
            case Held():
                return as_code(self.scope.held(results))
            case tuple():
                return ast.Tuple([self._result(element) for element in results], ast.Load())
            case dict():
                keys: list[ast.expr | None] = [ast.Constant(key) for key in results]
                return ast.Dict(keys, [self._result(element) for element in results.values()])
            case Free():
                return Hole(results)
        return as_code(results)

    def _wanted(self, statement: Statement, place: int) -> str:
        if statement.single and not statement.places:
            place = place_on_line(statement, self.statements)
        return self.scope.wanted(statement, place) or (
            "hidden" if list(refs(statement.value)) else "x"
        )

    def _kept(
        self, wanted: str, index: int, holder: Mapping[str, int], last: Mapping[int, int]
    ) -> str:
        """The name that the original keeps a value under whose own is needed now, if it does."""
        if wanted not in holder or last.get(holder[wanted], -1) <= index:
            return ""
        other = names.other_name(wanted, self.scope.forward)
        if not other or (other in holder and last.get(holder[other], -1) >= index):
            return ""
        return other

    def _free_name(
        self, wanted: str, index: int, holder: Mapping[str, int], last: Mapping[int, int]
    ) -> str:
        if wanted in self.scope.taken:
            wanted = f"{wanted}_"
        name, number = wanted, 1
        while name in holder and last.get(holder[name], -1) > index:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def _named(self, value: ast.expr, names_of: Mapping[int, str]) -> ast.expr:
        def one(hole: Hole) -> ast.expr:
            if isinstance(hole.value, Ref):
                return ast.Name(names_of[hole.value.id], ast.Load())
            return hole

        return fill(value, one)

    def _sized(self, value: ast.expr, known: Sequence[int]) -> ast.expr:
        near = [number for number in dict.fromkeys(refs(value)) if number in set(known)]
        there = [number for number in (*near, *known) if number not in self.scope.maybe]
        asked = set(near) - set(there)

        def sized(order: Sequence[int]) -> Callable[[Hole], ast.expr]:
            def one(hole: Hole) -> ast.expr:
                if isinstance(hole.value, Free):
                    return self._size(hole.value.expression, order, near)
                return hole

            return one

        if asked and isinstance(value, ast.IfExp):
            # Only this side is computed where they are there.
            value.orelse = fill(value.orelse, sized([*there, *near]))
        return fill(value, sized(there))

    def _shown(self, expression: sympy.Expr, near: Sequence[int]) -> bool:
        """Whether these tensors show all sizes that a product is of."""
        sides = {
            side.expression
            for number in near
            for side in self.facts[number].shape
            if isinstance(side, Free)
        }
        return all(factor.is_Integer or factor in sides for factor in expression.args)

    def _passed_whole(self, expression: sympy.Expr, order: Sequence[int]) -> bool:
        """Whether a size is an argument as it is: a rounded one, of which no tensor here shows any part.

        The caller has a tensor of this size where the original does: `x.shape[1]`, and not
        `(length - 1) // 4 + 1`.
        """
        if self.scope.size is None or not any(
            type(part).__name__ in _BINARY for part in sympy.preorder_traversal(expression)
        ):
            return False
        shown = {
            symbol
            for number in order
            for side in self.facts[number].shape
            if isinstance(side, Free)
            for symbol in side.expression.free_symbols
        }
        return not shown & expression.free_symbols

    def _size(
        self, expression: sympy.Expr, order: Sequence[int], near: Sequence[int] = ()
    ) -> ast.expr:
        if expression.is_Mul and self._shown(expression, near):
            order = near  # `k.shape[0] * 2`, and no tensor that only happens to be as long
        for number in order:
            for axis, side in enumerate(self.facts[number].shape):
                if isinstance(side, Free) and side.expression == expression:
                    if self.scope.layouts.get(number) == LAST:
                        axis = moved(axis, len(self.facts[number].shape))
                    return code("{x}.shape[{i}]", x=Hole(Ref(number)), i=axis)
        if expression.is_Integer:
            return as_code(int(expression))
        if self._passed_whole(expression, order):
            assert self.scope.size is not None
            return ast.Name(self.scope.size(expression), ast.Load())
        if expression.is_Float or expression.is_Rational:
            return as_code(float(expression))
        parts = [self._size(argument, order) for argument in expression.args]
        if expression.is_Add:
            return _joined("+", parts)
        if expression.is_Mul:
            return _joined("*", parts)
        kind = type(expression).__name__
        if kind in _BINARY:
            return code(f"{{a}} {_BINARY[kind]} {{b}}", a=parts[0], b=parts[1])
        if kind in _ROUNDED:
            return call(_ROUNDED[kind], parts[0])
        if kind == "ToFloat":
            return parts[0]
        if kind in ("Max", "Min"):
            return call(kind.lower(), *parts)
        if expression.is_Pow and expression.args[1].is_Integer and int(expression.args[1]) > 0:
            return code("{a} ** {b}", a=parts[0], b=parts[1])
        if expression.is_Symbol and self.scope.size is not None:
            return ast.Name(self.scope.size(expression), ast.Load())
        raise GraphError(
            f"{self.scope.where}: the size {expression} cannot be told from its inputs",
            "see docs/port.md, 'Models that do not export'",
        )


_BINARY = {
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
}
# How sizes that were rounded are written.
_ROUNDED = {"CeilToInt": "math.ceil", "FloorToInt": "math.floor", "TruncToInt": "math.trunc"}


def _nested(targets: Iterator[ast.expr], shape: Any) -> ast.expr:
    if shape is None:
        return next(targets)
    parts = [_nested(targets, part_shape) for part_shape in shape]
    unread = all(isinstance(part, ast.Name) and part.id == "_" for part in parts)
    return parts[0] if unread else ast.Tuple(parts, ast.Store())


def _joined(operator: str, parts: Sequence[ast.expr]) -> ast.expr:
    # Numbers last, as one writes it; a negative one is subtracted.
    ordered = sorted(parts, key=lambda part: isinstance(part, ast.Constant | ast.UnaryOp))
    joined = ordered[0]
    for part in ordered[1:]:
        if operator == "+" and isinstance(part, ast.UnaryOp):
            joined = code("{a} - {b}", a=joined, b=part.operand)
        else:
            joined = code(f"{{a}} {operator} {{b}}", a=joined, b=part)
    return joined
