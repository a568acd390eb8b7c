"""Arguments of the loss that select the batch: `loss_of(model, buffer.tokens[rows])`.

The object or the rows change between steps; what they select is the batch, and has a name of its own.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterator, Sequence

from migrate.train.errors import TrainError
from migrate.train.slice.text import FunctionNode, ScriptText, first_line, loads, stores

_SELECTING = (
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.Constant,
    ast.UnaryOp,
    ast.BinOp,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)


class Selections:
    """Arguments that became names of the batch.

    Args:
        script: the script.
        code: the function with the statements of the loss, or the module.
        changing: names whose values change between steps.

    Attributes:
        expressions: name → the argument's expression.
    """

    def __init__(self, script: ScriptText, code: ast.AST | None, changing: Collection[str]) -> None:
        self._script, self._changing = script, set(changing)
        self._names = set(_names(code)) if code is not None else set()
        self._functions = {
            node.name: node for node in script.tree.body if isinstance(node, FunctionNode)
        }
        self._written: dict[ast.stmt, ast.stmt] = {}
        self.expressions: dict[str, str] = {}

    def selected(self, statement: ast.stmt) -> ast.stmt:
        """Give names to the arguments of a statement that read what changes; return the new statement."""
        new = copy.deepcopy(statement)
        for node in ast.walk(new):
            if not isinstance(node, ast.Call):
                continue
            parameters = self._parameters(node)
            node.args = [
                self._named(argument, name)
                for argument, name in zip(node.args, parameters, strict=True)
            ]
            for keyword in node.keywords:
                keyword.value = self._named(keyword.value, keyword.arg or "")
        self._written[statement] = ast.fix_missing_locations(new)
        return new

    def written(self, statement: ast.stmt) -> ast.stmt:
        """The statement with these names."""
        return self._written.get(statement, statement)

    def text(self, statement: ast.stmt) -> str:
        """Text of a statement, as the script has it if no argument of it became a name."""
        new = self._written.get(statement)
        return self._script.text(statement) if new is None else ast.unparse(new)

    def lines(self, statement: ast.stmt) -> list[int]:
        """The script's line of each line of a statement's text."""
        count = self.text(statement).count("\n") + 1
        first, last = first_line(statement), statement.end_lineno or 0
        begin = self._script.first_line_of_text(statement)
        as_written = count == last - begin + 1 and statement not in self._written
        return list(range(begin, last + 1)) if as_written else [first] * count

    def spread(self, statements: Sequence[ast.stmt], result: ast.expr) -> tuple[str, list[str]]:
        """Give the items of a batch in `loss_of(model, *batch)` the names of the function's parameters.

        Args:
            statements: the statements of the loss.
            result: expression of the loss.

        Returns:
            The batch's name, and those of its items; empty if the batch is read elsewhere too, or if the
            parameters do not say how many items it has.
        """
        stars = [
            (statement, call)
            for statement in statements
            for call in ast.walk(statement)
            if isinstance(call, ast.Call) and any(isinstance(a, ast.Starred) for a in call.args)
        ]
        if len(stars) != 1 or stars[0][0] in self._written:
            return "", []
        statement, call = stars[0]
        star, names = call.args[-1], self._rest(call)
        if not isinstance(star, ast.Starred) or not isinstance(star.value, ast.Name) or not names:
            return "", []
        batch = star.value.id
        every = [n for s in (*statements, result) for n in ast.walk(s) if isinstance(n, ast.Name)]
        alone = sum(name.id == batch for name in every) == 1
        if not alone or (self._names | {n.id for n in every} | self._changing) & set(names):
            return "", []
        self.expressions |= {name: f"{batch}[{n}]" for n, name in enumerate(names)}
        new = copy.deepcopy(statement)
        for node in ast.walk(new):
            if isinstance(node, ast.Call) and ast.dump(node) == ast.dump(call):
                node.args[-1:] = [ast.copy_location(ast.Name(n, ast.Load()), star) for n in names]
        self._written[statement] = ast.fix_missing_locations(new)
        return batch, names

    def _rest(self, call: ast.Call) -> list[str]:
        """Parameters of a function of the script that the last argument `*batch` of a call fills."""
        function = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is None or any(isinstance(a, ast.Starred) for a in call.args[:-1]):
            return []
        args = function.args
        names = [a.arg for a in (*args.posonlyargs, *args.args)][len(call.args) - 1 :]
        fixed = args.vararg is None and not call.keywords and len(args.defaults) == 0
        return names if fixed else []

    def require_first(self, taken: Sequence[ast.stmt]) -> None:
        """Require that no statement of the loss computes what an argument selects from.

        Raises:
            TrainError: one does: the batch is selected before them.
        """
        for statement in taken:
            for expression in self.expressions.values():
                if lost := set().union(*stores(statement)) & loads(ast.parse(expression)):
                    raise TrainError(
                        f"{self._script.at(first_line(statement))}: {min(lost)} is computed among the "
                        f"statements of the loss, and {expression} is its batch",
                        "select the batch before the model is called",
                    )

    def _parameters(self, call: ast.Call) -> list[str]:
        """Name of the parameter of each positional argument; "" where it is not known."""
        function = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        names = (
            [a.arg for a in (*function.args.posonlyargs, *function.args.args)] if function else []
        )
        return [*names, *[""] * len(call.args)][: len(call.args)]

    def _named(self, argument: ast.expr, parameter: str) -> ast.expr:
        if not loads(argument) & self._changing or not selects(argument):
            return argument
        expression = ast.unparse(argument)
        known = {text: name for name, text in self.expressions.items()}
        name = known.get(expression, parameter)
        if not name or (name in self._names and expression not in known):
            name = re.sub(r"\W+", "_", expression).strip("_").lower()
        while self.expressions.get(name, expression) != expression or name in self._names:
            name += "_"
        self.expressions[name] = expression
        return ast.copy_location(ast.Name(name, ast.Load()), argument)


def _names(code: ast.AST) -> Iterator[str]:
    """Yield the names of a function or of the module, without those of functions in it."""
    for node in ast.iter_child_nodes(code):
        if isinstance(node, ast.Name):
            yield node.id
        if not isinstance(node, FunctionNode | ast.ClassDef):
            yield from _names(node)


def selects(value: ast.expr) -> bool:
    """Whether an expression takes attributes and items alone; methods without arguments are conversions."""
    if isinstance(value, ast.Name):
        return False
    return all(
        isinstance(node, _SELECTING)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args)
        for node in ast.walk(value)
    )
