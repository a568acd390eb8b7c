"""Statements from the batch to the loss, cut backwards from the script's `backward`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from migrate.catalogue.drawing import MAKERS
from migrate.draws import LIKES
from migrate.model.calls.rank_tests import last_part
from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.selected import Selections, selects
from migrate.train.slice.statements import is_inert
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    loads,
    outside,
    path_to,
    root,
    stores,
)

# Methods whose calls as a statement change no value that the loss reads.
_APART = (
    "backward",
    "clear",
    "eval",
    "log",
    "step",
    "requires_grad_",
    "set_epoch",
    "train",
    "update",
    "zero_grad",
)


@dataclass(frozen=True)
class LossSlice:
    """Statements that compute the loss.

    Attributes:
        frame: the frame that calls `backward`.
        line: line of the first statement, or of `backward` itself if the loss is one expression.
        lines: first and last lines of the statements that were taken.
        text: the statements, without indentation.
        result: the expression of the loss.
        free: names that they read from outside, in order.
        unpacked: names of the parts of the batch, where its first statement unpacks it or a call spreads
            it → `batch[0]`.
        selected: names of arguments that select the batch → their expressions, `buffer.tokens[rows]`.
        drawn: names of random numbers that belong to the batch → line of the statement that draws them.
        text_lines: the script's line of each line of `text`.
    """

    frame: Frame
    line: int
    lines: tuple[tuple[int, int], ...]
    text: str
    result: str
    free: tuple[str, ...]
    unpacked: Mapping[str, str] = field(default_factory=dict)
    selected: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, int] = field(default_factory=dict)
    text_lines: tuple[int, ...] = ()


def loss_slice(
    script: ScriptText,
    frame: Frame,
    changing: Collection[str] = (),
    computed: Collection[str] = (),
    *,
    before: Sequence[Frame] = (),
    draws_apart: bool = False,
) -> LossSlice:
    """Cut out what computes the loss on which a frame calls `backward`.

    Args:
        script: the script.
        frame: the frame.
        changing: names whose numbers change between steps. What a statement computes from them, the part
            `batch[k * rows : (k + 1) * rows]` for instance, belongs to the data.
        computed: names that the model computes: of a statement that binds one, only the arguments that read
            what changes belong to the data.
        before: frames of earlier backwards of the same update: the loss is the sum of all.
        draws_apart: whether random numbers belong to the data: losses of several updates read the same ones.

    Raises:
        TrainError: it is no expression of the frame, or control flow leaves the statements.
    """
    code = script.code(frame.first, frame.function)
    path = path_to(code, frame.line) if code is not None else []
    if not path:
        raise TrainError(
            f"{script.at(frame.line)}: backward is called by code that cannot be read",
            "call loss.backward() in a statement of the training function",
        )
    block, index = path[-1]
    result = _started(script, block[index], frame)
    for earlier in reversed(before):
        result = _with_earlier(script, code, earlier, result)
    cut = _Cut(script, loads(result), changing, {*computed, *loads(result)})
    cut.draws_apart = draws_apart
    cut.selections = Selections(script, code, changing)
    for block, index in reversed(_within_loop(path)):
        cut.backwards(block[:index])
    batch, items = cut.selections.spread(cut.taken, result)
    cut.needed = (cut.needed - {batch}) | set(items)
    cut.unpacked = {name: cut.selections.expressions[name] for name in items}
    cut.leave_selections(result, _loop_names(path))
    cut.leave_unpacking(result)
    first = first_line(cut.taken[-1] if cut.taken else path[-1][0][path[-1][1]])
    taken = list(reversed(cut.taken))
    cut.selections.require_first(taken)
    written = [cut.selections.written(statement) for statement in taken]
    order = list(dict.fromkeys(_ordered(written, result)))
    return LossSlice(
        frame,
        first,
        tuple((first_line(statement), statement.end_lineno or 0) for statement in taken),
        "\n".join(cut.selections.text(statement) for statement in taken),
        ast.unparse(result),
        tuple(name for name in order if name in cut.needed and not _is_builtin(name)),
        cut.unpacked,
        cut.selections.expressions,
        cut.drawn,
        tuple(line for statement in taken for line in cut.selections.lines(statement)),
    )


def handed_loss(function: ast.AST | None, frame: Frame) -> str:
    """Parameter of a function that is the loss on which it calls `backward`; "" if the loss is another thing.

    Args:
        function: the function.
        frame: its frame.
    """
    path = path_to(function, frame.line) if isinstance(function, FunctionNode) else []
    if not path or not isinstance(function, FunctionNode):
        return ""
    if any(isinstance(block[index], ast.For | ast.While) for block, index in path):
        return ""
    statement = path[-1][0][path[-1][1]]
    starts = [_start_of(n) for n in ast.walk(statement) if _is_backward(n, frame.line)]
    starts += [ast.parse(frame.loss, mode="eval").body] if frame.loss else []
    loss = _unscaled(starts[0]) if starts else None
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    name = loss.id if isinstance(loss, ast.Name) else ""
    bound = {n for statement in function.body for n in stores(statement)[0]}
    return name if name in {a.arg for a in arguments} - bound else ""


def starts_backward(function: ast.AST | None, line: int) -> bool:
    """Whether the statement at a line of a function calls `backward` itself."""
    path = path_to(function, line) if function is not None else []
    nodes = ast.walk(path[-1][0][path[-1][1]]) if path else ()
    return any(_is_backward(node, line) for node in nodes)


def _is_backward(node: ast.AST, line: int) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        and node.lineno <= line <= (node.end_lineno or 0)
    )


def _start_of(call: ast.Call) -> ast.expr:
    """The loss of loss.backward(), accelerator.backward(loss) or torch.autograd.backward(loss)."""
    assert isinstance(call.func, ast.Attribute)
    return call.args[0] if call.args else call.func.value


def _started(script: ScriptText, statement: ast.stmt, frame: Frame) -> ast.expr:
    """The expression that `backward` starts from; a loss scaler around it is stripped."""
    if frame.loss:
        return _unscaled(ast.parse(frame.loss, mode="eval").body)
    for node in ast.walk(statement):
        if _is_backward(node, frame.line):
            return _unscaled(_start_of(node))
    raise TrainError(
        f"{script.at(frame.line)}: this statement runs a backward, but calls none",
        "call loss.backward() in the training function",
    )


def _with_earlier(
    script: ScriptText, code: ast.AST | None, earlier: Frame, result: ast.expr
) -> ast.expr:
    """The sum of the loss of an earlier backward and a later one.

    Raises:
        TrainError: both have one name, or the earlier one is no plain name.
    """
    block, index = path_to(code, earlier.line)[-1]  # type: ignore[arg-type]
    first = _started(script, block[index], earlier)
    if not isinstance(first, ast.Name) or loads(first) & loads(result):
        raise TrainError(
            f"{script.at(earlier.line)}: a later backward of the same update starts from the same name",
            "give each loss of an update a name of its own",
        )
    return ast.BinOp(first, ast.Add(), result)


def _is_draw(statement: ast.stmt) -> bool:
    """Whether a statement gives a name random numbers of torch: `noise = torch.randn(rows, 100)`."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    return last_part(call.func) in MAKERS | LIKES and root(call.func) == "torch"


def _unscaled(value: ast.expr) -> ast.expr:
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "scale"
        and len(value.args) == 1
    ):
        return value.args[0]
    return value


def _within_loop(path: list[tuple[list[ast.stmt], int]]) -> list[tuple[list[ast.stmt], int]]:
    """The part of a path inside its innermost loop."""
    start = 0
    for level, (block, index) in enumerate(path[:-1]):
        if isinstance(block[index], ast.For | ast.While | ast.AsyncFor):
            start = level + 1
    return path[start:]


def _loop_names(path: list[tuple[list[ast.stmt], int]]) -> set[str]:
    """Names that the innermost loop of a path sets."""
    loops = [block[index] for block, index in path[:-1]]
    for loop in reversed(loops):
        if isinstance(loop, ast.For | ast.AsyncFor):
            return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        if isinstance(loop, ast.While):
            return set()
    return set()


class _Cut:
    """Statements that are needed, collected from the last to the first."""

    selections: Selections
    draws_apart = False

    def __init__(
        self,
        script: ScriptText,
        needed: set[str],
        changing: Collection[str],
        computed: Collection[str],
    ) -> None:
        self._script = script
        self._changing, self._computed = set(changing), set(computed)
        self.needed = set(needed)
        self._local: set[str] = set()
        self._of_data: set[str] = set()  # names that a later statement of the data binds
        self.taken: list[ast.stmt] = []
        self.drawn: dict[str, int] = {}
        self.unpacked: dict[str, str] = {}

    def backwards(self, statements: list[ast.stmt]) -> None:
        """Take what is needed of statements that run one after another."""
        for statement in reversed(statements):
            self._consider(statement)

    def leave_selections(self, result: ast.expr, indices: set[str]) -> None:
        """Leave first statements `ids, old = buffer[rows], olds[rows]` to the data: they select the batch.

        Args:
            result: expression of the loss.
            indices: names that the innermost loop sets, `rows`.
        """
        while self.taken and _takes_items(self.taken[-1], indices):
            reads, _ = outside([*reversed(self.taken[:-1]), ast.Expr(result)])
            own, binds = outside([self.taken.pop()])
            self.needed = (self.needed - (own - reads)) | (binds & reads)

    def leave_unpacking(self, result: ast.expr) -> None:
        """Leave a first `ids, mask = batch` to the data: the batch has the names of its parts."""
        if self.taken and (source := _unpacked(self.taken[-1])[0]) in self.needed:
            _, names = _unpacked(self.taken.pop())
            reads, _ = outside([*reversed(self.taken), ast.Expr(result)])
            self.unpacked |= {n: f"{source}[{i}]" for i, n in enumerate(names)}
            self.needed |= set(names) & reads
            if source not in reads:
                self.needed.discard(source)

    def _consider(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.With) and all(map(self._has_no_effect, statement.items)):
            self.backwards(statement.body)
            return
        if _is_source(statement) or not self._is_needed(statement):
            return
        if isinstance(statement, ast.Try) and all(map(_is_source, self._needed_in(statement))):
            return  # try: batch = next(batches) except StopIteration: …
        if self.draws_apart and _is_draw(statement):
            names = stores(statement)[0] & self.needed
            self.drawn |= {name: first_line(statement) for name in names - set(self.drawn)}
            return
        reads, binds = outside([statement])
        if reads & self._changing:
            if not binds & self._computed:
                # `x, y = mixup(x, y)`: what gave x and y before belongs to the data too.
                self._of_data |= stores(statement)[0] & self.needed
                return
            reads, binds = outside([self.selections.selected(statement)])
        leaving = next(
            (
                node
                for node in ast.walk(statement)
                if isinstance(node, ast.Break | ast.Continue | ast.Return | ast.Try)
            ),
            None,
        )
        if leaving is not None and not isinstance(statement, FunctionNode):
            raise TrainError(
                f"{self._script.at(leaving.lineno)}: control flow leaves the statements between the "
                "batch and the loss",
                "move the condition before the first statement that computes the loss",
            )
        self.needed -= binds
        self.needed |= reads
        self.needed |= {root(node) for node in _changed(statement)} - {""}
        self.taken.append(statement)

    def _needed_in(self, statement: ast.stmt) -> list[ast.stmt]:
        """Statements without others inside of them that are needed, in the blocks of a statement."""
        inner = [s for block in blocks(statement) for s in block if self._is_needed(s)]
        return [part for s in inner for part in (self._needed_in(s) or [s])]

    def _has_no_effect(self, item: ast.withitem) -> bool:
        # A name is decided by running: the slice must give the script's own loss.
        return isinstance(item.context_expr, ast.Name) or is_inert(item.context_expr)

    def _is_needed(self, statement: ast.stmt) -> bool:
        binds, changes = stores(statement)
        needed = self.needed - self._of_data
        if (binds | changes) & needed:
            # self.step = … is no part of a loss that reads self.model
            return bool(binds & needed) or self._reads_again(statement)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            return (
                isinstance(call.func, ast.Attribute)
                and call.func.attr not in _APART
                and root(call.func) in needed - {"self"}
            )
        return any(
            self._is_needed(inner)
            for block in blocks(statement)
            for inner in block
            if not isinstance(statement, FunctionNode | ast.ClassDef)
        )

    def _reads_again(self, statement: ast.stmt) -> bool:
        """Whether a statement changes an item or an attribute that later statements read."""
        targets = {ast.unparse(node) for node in _changed(statement)}
        names = {target for target in targets if "." in target and "[" not in target}
        if names != targets:
            return True
        read = {
            ast.unparse(n) for s in self.taken for n in ast.walk(s) if isinstance(n, ast.Attribute)
        }
        return bool(names & read)


def _is_source(statement: ast.stmt) -> bool:
    """Whether a statement fetches a batch: `x, y = get_batch("train")`, `batch = next(batches)`.

    Run again, it gives another one.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    if not isinstance(call.func, ast.Name):
        return False
    every = [*call.args, *(keyword.value for keyword in call.keywords)]
    return call.func.id == "next" or all(isinstance(value, ast.Constant) for value in every)


def _takes_items(statement: ast.stmt, indices: set[str]) -> bool:
    """Whether a statement gives names to items of others, each by an index that a loop sets."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(target.elts, value.elts, strict=False)]
    return all(
        isinstance(name, ast.Name)
        and isinstance(item, ast.Subscript)
        and selects(item)
        and loads(item.slice) & indices
        for name, item in pairs
    )


def _unpacked(statement: ast.stmt) -> tuple[str, list[str]]:
    """Name whose items a statement gives to names, and these names; empty for other statements."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return "", []
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Name):
        return "", []
    names = [item.id for item in target.elts if isinstance(item, ast.Name)]
    apart = len(names) == len(target.elts) and len({value.id, *names}) == 1 + len(names)
    return (value.id, names) if apart else ("", [])


def _changed(statement: ast.stmt) -> list[ast.expr]:
    return [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
    ]


def _ordered(taken: list[ast.stmt], result: ast.expr) -> list[str]:
    names = []
    for node in (*taken, result):
        read = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        names += [n.id for n in sorted(read, key=lambda n: (n.lineno, n.col_offset))]
    return names


def _is_builtin(name: str) -> bool:
    import builtins

    return hasattr(builtins, name)
