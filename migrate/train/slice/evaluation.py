"""Statements from a batch of an evaluation to its values, cut forwards from the call of the trained model.

What the model computes is a device's: statements that compute with it become one function of the batch. What
the script does with the values (sums, means, prints) stays as it is.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from migrate.train.frames import Frame
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    loads,
    path_to,
    stores,
    with_text,
)

# Name in `data.py` of the function that gives values of evaluations.
EVALUATED = "program_values"
# What the function of a call is.
MODEL, DEVICE = "model", "device"
# Methods that hand a tensor over to the host, as it is.
_HANDED = ("cpu", "detach", "numpy", "tolist", "clone")
# Conversions to a Python number.
_NUMBERS = ("float", "int", "bool")
# Methods of modules that set their mode.
MODES = ("train", "eval")
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp


class NoEvaluationError(Exception):
    """The statements around a call of the model are none that a program can evaluate with."""


@dataclass(frozen=True)
class EvaluatedValue:
    """Value that the host reads.

    Attributes:
        expression: its expression, in the names of the device's statements.
        name: its name on the host.
        is_number: whether the host reads a Python number, not a tensor.
    """

    expression: str
    name: str
    is_number: bool


@dataclass(frozen=True)
class EvaluationSlice:
    """Statements of a device in an evaluation.

    Attributes:
        line: line of the first of them.
        text: the statements, without indentation.
        values: what the host reads of them.
        free: names that they read from outside.
        edits: first line, last line and the text that stands there in the program; the text has `EVALUATED`
            for the call that gives the values.
    """

    line: int
    text: str
    values: tuple[EvaluatedValue, ...]
    free: tuple[str, ...]
    edits: tuple[tuple[int, int, str], ...]


def evaluation_slice(
    script: ScriptText,
    code: ast.AST,
    line: int,
    kind: Callable[[ast.expr], str],
    called: str = "",
) -> EvaluationSlice:
    """Cut out what a device computes around the call of a model.

    Args:
        script: the script.
        code: the module, or the function that has the call.
        line: line of the call.
        kind: `MODEL` for an expression of a model, `DEVICE` for one of another module, or of a function of
            torch or of the script; "" for others.
        called: function of the script that runs the model; "" if the call at the line is the model's own.

    Raises:
        NoEvaluationError: values leave the statements otherwise than to the host.
    """
    path = path_to(code, line)
    if not path:
        raise NoEvaluationError("its statements cannot be read")
    block, index = path[-1]
    if any(blocks(block[index])):
        raise NoEvaluationError("the model is called in the head of a block")
    cut = _ValueCut(script, kind, called)
    inner = _comprehension(block[index], cut.is_model_call)
    if inner is not None:
        return cut.comprehension(block[index], inner)
    level = len(path) - 1
    while level and isinstance(path[level - 1][0][path[level - 1][1]], ast.With | ast.AsyncWith):
        level -= 1
    return cut.block(*path[level])


def _comprehension(
    statement: ast.stmt, is_model_call: Callable[[ast.AST], bool]
) -> _Comprehension | None:
    """The comprehension whose items the model computes."""
    for node in ast.walk(statement):
        if isinstance(node, _Comprehension) and any(map(is_model_call, ast.walk(node.elt))):
            return node
    return None


class _ValueCut:
    def __init__(self, script: ScriptText, kind: Callable[[ast.expr], str], called: str) -> None:
        self._script, self._kind, self._called = script, kind, called
        self._tainted: set[str] = set()
        self._device: list[ast.stmt] = []  # statements of the device
        self._texts: list[str] = []
        self._values: dict[str, EvaluatedValue] = {}
        self._edits: list[tuple[int, int, str]] = []
        self._bound: set[str] = set()  # names that the host binds after the first of them
        self._taken = {n.id for n in ast.walk(script.tree) if isinstance(n, ast.Name)} | {
            n.arg for n in ast.walk(script.tree) if isinstance(n, ast.arg)
        }

    # ------------------------------------------------------------------ what is computed where

    def is_model_call(self, node: ast.AST) -> bool:
        """Whether a node calls the model, or the function that runs it."""
        if not isinstance(node, ast.Call):
            return False
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return (bool(self._called) and name == self._called) or self._kind(node.func) == MODEL

    def _computes(self, node: ast.AST) -> bool:
        """Whether a node reads what the device computes, or lets it compute."""
        return bool(loads(node) & self._tainted) or any(map(self.is_model_call, ast.walk(node)))

    def _number(self, node: ast.AST) -> ast.expr | None:
        """The tensor of a conversion to a number, `loss.item()`; None for other nodes."""
        if not isinstance(node, ast.Call):
            return None
        inner: ast.expr | None = None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            inner = node.func.value
        elif isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1:
            inner = node.args[0]
        if inner is None or not self._computes(inner):
            return None
        # float(loss.item()) is that of the number
        return None if any(self._number(n) is not None for n in ast.walk(inner)) else inner

    def _has_number(self, node: ast.AST) -> bool:
        return any(self._number(inner) is not None for inner in ast.walk(node))

    # ------------------------------------------------------------------ statements

    def block(self, block: list[ast.stmt], index: int) -> EvaluationSlice:
        """Cut a block from the statement on that calls the model."""
        first = block[index]
        self._statements([first, *block[index + 1 :]])
        return self._sliced(first)

    def comprehension(self, statement: ast.stmt, node: _Comprehension) -> EvaluationSlice:
        """Cut the items of a comprehension."""
        cuts = self._cuts(node.elt)
        if len(cuts) != 1:
            raise NoEvaluationError("a comprehension reads several values of a batch")
        [(part, inner, is_number)] = cuts
        self._value(inner, is_number, "value")
        self._edit(statement, [(part, ast.Name(EVALUATED, ast.Load()))])
        return self._sliced(statement)

    def _statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.With | ast.AsyncWith) and self._computes(statement):
                before = len(self._device), len(self._edits)
                self._statements(statement.body)
                whole = len(self._device) - before[0] == len(statement.body)
                if whole and not any(item.optional_vars for item in statement.items):
                    self._device[before[0] :] = [statement]
                continue
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        if not self._computes(statement):
            self._bound |= stores(statement)[0] if self._device or self._values else set()
            return
        targets = _plain_targets(statement)
        if targets and not self._has_number(statement):
            self._device.append(statement)
            self._texts.append(self._script.text(statement))
            self._tainted |= targets
            return
        if isinstance(statement, ast.Return):
            raise NoEvaluationError("what the model computes is returned")
        if isinstance(statement, FunctionNode | ast.ClassDef | ast.Delete):
            raise NoEvaluationError("a definition reads what the model computes")
        if any(blocks(statement)):
            self._heads(statement)
            return
        replaced: list[tuple[ast.AST, ast.expr]] = []
        for part, inner, is_number in self._cuts_of(statement):
            name = self._value(inner, is_number, _name_for(statement, part))
            replaced.append((part, ast.Name(name, ast.Load())))
        self._edit(statement, replaced)
        self._tainted -= stores(statement)[0]

    def _heads(self, statement: ast.stmt) -> None:
        """Cut the head of a compound statement, and the statements in it."""
        for field in ("test", "iter"):
            head = getattr(statement, field, None)
            if head is not None and self._computes(head):
                raise NoEvaluationError("a condition or a loop reads what the model computes")
        for inner in blocks(statement):
            for child in inner:
                if self._computes(child):
                    if _plain_targets(child) and not self._has_number(child):
                        raise NoEvaluationError("the model computes under a condition")
                    self._statement(child)

    def _cuts_of(self, statement: ast.stmt) -> list[tuple[ast.AST, ast.expr, bool]]:
        """Parts of a statement that the device computes.

        A call that is a statement does something, `learner.learn(seen)`: it stays the host's.
        """
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or self._has_number(call):
            return self._cuts(statement)
        if isinstance(call.func, ast.Attribute) and self._computes(call.func.value):
            raise NoEvaluationError("a statement calls a method of what the model computes")
        return [cut for part in (*call.args, *call.keywords) for cut in self._cuts(part)]

    def _cuts(self, node: ast.AST) -> list[tuple[ast.AST, ast.expr, bool]]:
        """Largest parts that the device computes: the part, its tensor, whether it is read as a number."""
        if not self._computes(node):
            return []
        inner = self._number(node)
        if inner is not None:
            return [(node, inner, True)]
        whole: ast.expr | None = None
        if isinstance(node, ast.Name):
            whole = node
        elif isinstance(node, ast.Call):
            handed = isinstance(node.func, ast.Attribute) and node.func.attr in _HANDED
            method = isinstance(node.func, ast.Attribute) and self._computes(node.func.value)
            if not handed and (method or self._kind(node.func) or self.is_model_call(node)):
                whole = node
        elif isinstance(
            node, ast.Compare | ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Attribute
        ):
            whole = node
        if whole is not None and not self._has_number(whole) and not _is_handed(whole):
            return [(whole, whole, False)]
        return [cut for child in ast.iter_child_nodes(node) for cut in self._cuts(child)]

    def _value(self, expression: ast.expr, is_number: bool, name: str) -> str:
        text = ast.unparse(expression)
        known = self._values.get(text)
        if known is not None and known.is_number == is_number:
            return known.name
        if isinstance(expression, ast.Name):
            name = expression.id
        elif name in self._taken or name in {value.name for value in self._values.values()}:
            name = f"{name}_{len(self._values) + 1}"
        key = text if known is None else f"{text} "
        self._values[key] = EvaluatedValue(text, name, is_number)
        return name

    # ------------------------------------------------------------------ the result

    def _edit(self, statement: ast.stmt, replaced: Sequence[tuple[ast.AST, ast.expr]]) -> None:
        twin = _with_nodes(statement, {id(a): b for a, b in replaced})
        self._edits.append((statement.lineno, statement.end_lineno or 0, ast.unparse(twin)))

    def _sliced(self, first: ast.stmt) -> EvaluationSlice:
        if not self._values:
            raise NoEvaluationError("the host reads no value of it")
        values = tuple(self._values.values())
        edits = list(self._edits)
        if self._device:
            begin, *rest = self._device
            names = ", ".join(value.name for value in values)
            edits.append((first_line(begin), begin.end_lineno or 0, f"{names} = {EVALUATED}"))
            edits += [(first_line(s), s.end_lineno or 0, "") for s in rest]
        elif len(values) == 1:  # one expression: the call stands in its place
            edits = [
                (a, b, _renamed(text, values[0].name, EVALUATED)) for a, b, text in self._edits
            ]
        else:
            raise NoEvaluationError("one statement reads several values of the model")
        text = "\n".join(self._texts)
        free: list[str] = []
        bound: set[str] = set()
        for node in (*ast.parse(text).body, *(ast.parse(v.expression) for v in values)):
            read = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
            own = loads(node) - bound
            free += [name for name in read if name in own]
            if isinstance(node, ast.stmt):
                bound |= stores(node)[0]
        if set(free) & self._bound:
            raise NoEvaluationError("the host computes between two statements of the model")
        return EvaluationSlice(
            first_line(first), text, values, tuple(dict.fromkeys(free)), tuple(edits)
        )


def _renamed(text: str, old: str, new: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == old and isinstance(node.ctx, ast.Load):
            node.id = new
    return ast.unparse(tree)


def _is_handed(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _HANDED
    )


def _plain_targets(statement: ast.stmt) -> set[str]:
    """Names that an assignment binds, if it binds names alone."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return set()
    nodes = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.expr)]
    plain = all(isinstance(n, ast.Name | ast.Tuple | ast.List | ast.Starred) for n in nodes)
    return {n.id for n in nodes if isinstance(n, ast.Name)} if plain else set()


def _name_for(statement: ast.stmt, part: ast.AST) -> str:
    """A name for a value: that of the sum that it is added to, or of what it is assigned to."""
    target = getattr(statement, "target", None)
    if isinstance(statement, ast.AugAssign) and isinstance(target, ast.Name):
        return f"{target.id}_of_batch"
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return f"{statement.targets[0].id}_of_batch"
    return "value"


def _with_nodes(statement: ast.stmt, replaced: Mapping[int, ast.expr]) -> ast.stmt:
    """A copy of a statement with other nodes."""

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            other = replaced.get(id(node))
            if other is not None:
                return other
            twin = copy.copy(node)
            for field, value in ast.iter_fields(node):
                if isinstance(value, list):
                    items = [self.visit(v) if isinstance(v, ast.AST) else v for v in value]
                    setattr(twin, field, items)
                elif isinstance(value, ast.AST):
                    setattr(twin, field, self.visit(value))
            return twin

    result = Put().visit(statement)
    assert isinstance(result, ast.stmt)
    return result


# ---------------------------------------------------------------------------- the script without its models


def evaluating_text(
    script: ScriptText,
    edits: Collection[tuple[int, int, str]],
    chains: Collection[Sequence[Frame]],
    modes: Collection[int],
) -> ScriptText:
    """The script with values of the program where it runs its model; each line stays where it is.

    Args:
        script: the script.
        edits: first line, last line, and the text that stands there.
        chains: frames of the calls that evaluate, innermost first, without those of the training.
        modes: lines that set the mode of a module in the recorded run.
    """
    text = script
    for first, last, new in edits:
        text = with_text(text, first, last, new)
    functions = {(frame.function, frame.first): None for chain in chains for frame in chain}
    defined: dict[tuple[str, int], int] = {}
    for name, first in functions:
        code = script.code(first, name)
        if isinstance(code, FunctionNode):
            defined[name, first] = code.lineno
            text = _without_modes(text, name, code.lineno, modes)
    for chain in chains:
        for called, caller in itertools.pairwise(chain):
            line = defined.get((called.function, called.first))
            if line is not None:
                text = _without_arguments(text, caller.line, called.function, line)
    return text


def _function(script: ScriptText, name: str, line: int) -> FunctionNode | None:
    nodes = (n for n in ast.walk(script.tree) if isinstance(n, FunctionNode))
    return next((n for n in nodes if n.name == name and n.lineno == line), None)


def _without_modes(script: ScriptText, name: str, line: int, lines: Collection[int]) -> ScriptText:
    """The script with a function that sets no modes of models, and is not marked as one without gradients."""
    function = _function(script, name, line)
    if function is None:
        return script
    gone = [
        (decorator.lineno, decorator.end_lineno or 0, "")
        for decorator in function.decorator_list
        if any(word in ast.unparse(decorator) for word in ("no_grad", "inference_mode"))
    ]
    calls = [(s, owner) for s in ast.walk(function) if (owner := _owner_of_mode(s))]
    # A statement that was not run, in another branch say, is of an object that others show to be a module.
    modules = {owner for s, owner in calls if _lines_of(s) & {*lines}}
    every = {s for s, owner in calls if owner in modules}
    for block in (b for n in ast.walk(function) for b in blocks(n)):
        modes = [s for s in block if s in every]
        text = "pass" if len(modes) == len(block) else ""
        gone += [(s.lineno, s.end_lineno or 0, text) for s in modes]
    for first, last, text in gone:
        script = with_text(script, first, last, text)
    return script


def _owner_of_mode(statement: ast.AST) -> str:
    """The object of a statement that may set the mode of a module, `model.eval()`; "" for others."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    may = call.func.attr in MODES and len(call.args) <= (call.func.attr == "train")
    return ast.unparse(call.func.value) if may else ""


def _lines_of(statement: ast.AST) -> set[int]:
    """Lines of a statement."""
    assert isinstance(statement, ast.stmt)
    return {*range(statement.lineno, (statement.end_lineno or 0) + 1)}


def _without_arguments(script: ScriptText, line: int, name: str, defined: int) -> ScriptText:
    """The script, whose call of a function at a line hands over None where nothing reads the argument."""
    function = _function(script, name, defined)
    statement = next(
        (
            s
            for s in ast.walk(script.tree)
            if isinstance(s, ast.stmt)
            and not any(blocks(s))
            and s.lineno <= line <= (s.end_lineno or 0)
        ),
        None,
    )
    if statement is None or function is None:
        return script
    read = {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    taken = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    changed = False
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call):
            continue
        if getattr(call.func, "id", getattr(call.func, "attr", "")) != name:
            continue
        bound = isinstance(call.func, ast.Attribute) and taken[:1] == ["self"]
        for number, parameter in enumerate(taken[bound:][: len(call.args)]):
            if parameter not in read and not isinstance(call.args[number], ast.Starred):
                call.args[number] = ast.Constant(None)
                changed = True
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in read:
                keyword.value = ast.Constant(None)
                changed = True
    if not changed:
        return script
    text = ast.unparse(ast.fix_missing_locations(statement))
    return with_text(script, statement.lineno, statement.end_lineno or 0, text)
