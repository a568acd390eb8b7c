"""Log lines of a script's training loop, as the function `report` of its program."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.train.slice.loops import LOOPS, TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.statements import every_statement
from migrate.train.slice.text import ScriptText, blocks, loads, path_to

# Modules that a log line may read.
_MODULES = ("math", "time")
_READS = ("item",)  # methods that read a tensor
# Names that `train.py` has for other things.
_TAKEN = (
    *(
        "losses",
        "rate",
        "number",
        "report",
        "main",
        "load",
        "save",
        "apply",
        "train_step",
        "optimizer",
    ),
    *("learning_rate_of", "loss_of", "value_and_grad", "averaged", "refreshed", "late", "state"),
)


@dataclass(frozen=True)
class Log:
    """Source that prints an update.

    Attributes:
        settings: assignments of the module, before the functions.
        function: the function `report`.
        imports: modules that it reads.
        norm: whether it gets the norm of the gradients.
        line: the first line that prints.
        lines: lines of the script that are in it.
    """

    settings: str
    function: str
    imports: tuple[str, ...]
    norm: bool
    line: int
    lines: frozenset[int]


class _NotPortableError(Exception):
    """The lines read more than what the program has."""


def log_of(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    known: Collection[int],
    norms: Collection[int],
    *,
    single: bool,
) -> Log | None:
    """The log lines of the loop around the training step; None if there are none that a program can have.

    Args:
        script: the script.
        events: where it trains.
        loss: the statements of the loss.
        known: lines that the program has elsewhere, and those that train.
        norms: lines that give the norm of all gradients.
        single: whether each update has one micro-batch.
    """
    frame = events.backward[0]
    code = script.code(frame.first, frame.function)
    steps = [frames[0] for frames in events.steps]
    own = (frame.function, frame.first)
    if code is None or len(steps) != 1 or (steps[0].function, steps[0].first) != own:
        return None
    bodies = _bodies(code, frame.line, steps[0].line, single=single)
    if bodies is None or not loss.result.isidentifier():
        return None
    try:
        return _LogWriter(script, code, bodies, loss, known, norms).write()
    except _NotPortableError:
        return None


def _bodies(
    code: ast.AST, backward: int, step: int, *, single: bool
) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
    """Statements of each micro-batch, and those of each update; None if the loop has another form."""
    of_backward, of_step = (_loop_body(code, line) for line in (backward, step))
    if of_backward is None or of_step is None:
        return None
    if of_backward is not of_step:
        inner = {s for statement in of_step for s in every_statement(statement)}
        return (of_backward, of_step) if of_backward[0] in inner else None
    for number, statement in enumerate(of_step):
        # if (step + 1) % accumulation: continue
        if isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Continue):
            before, after = of_step[:number], of_step[number + 1 :]
            if _has_line(before, backward) and _has_line(after, step):
                return before, after
    return ([], of_step) if single else None


def _loop_body(code: ast.AST, line: int) -> list[ast.stmt] | None:
    """The block of the innermost loop that has a line; None if the line is in a block inside of it."""
    path = path_to(code, line)
    for (outer, at), (block, _) in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if isinstance(outer[at], LOOPS):
            return block
        if not isinstance(outer[at], ast.With):
            return None
    return None


def _has_line(statements: Sequence[ast.stmt], line: int) -> bool:
    return any(s.lineno <= line <= (s.end_lineno or 0) for s in statements)


class _LogWriter:
    def __init__(
        self,
        script: ScriptText,
        code: ast.AST,
        bodies: tuple[list[ast.stmt], list[ast.stmt]],
        loss: LossSlice,
        known: Collection[int],
        norms: Collection[int],
    ) -> None:
        self._script, self._loss, self._known, self._norms = script, loss, known, norms
        self._micro, self._update = bodies
        self._training = {s for body in bodies for top in body for s in every_statement(top)}
        scope = [s for s in ast.walk(code) if isinstance(s, ast.stmt)]
        self._bound = [(s, n) for s in {*scope, *script.tree.body} for n in _assigned(s)]
        self._carried: set[ast.stmt] = set()
        self._counters: dict[str, int] = {}  # name → the update's number less its value
        self._settings: dict[str, str] = {}
        self._state: set[str] = set()
        self._fresh: dict[str, str] = {}  # names that begin anew in each update → their value
        self._resets: set[ast.stmt] = set()
        self._imports: set[str] = set()
        self._norm = ""

    def write(self) -> Log | None:
        """Carry what prints, and what it reads."""
        printing = [
            s
            for s in self._update
            if not self._is_known(s) and _prints(s) and not any(map(_is_step, every_statement(s)))
        ]
        if not printing:
            return None
        for statement in printing:
            self._carry(statement)
        function = self._function()
        lines = {line for s in self._carried for line in range(s.lineno, (s.end_lineno or 0) + 1)}
        lines |= {s.lineno for s, name in self._bound if name in {*self._fresh, *self._counters}}
        return Log(
            "".join(f"{name} = {value}\n" for name, value in self._settings.items()),
            function,
            tuple(sorted(self._imports)),
            bool(self._norm),
            printing[0].lineno,
            frozenset(lines),
        )

    # ------------------------------------------------------------------ what is read

    def _is_known(self, statement: ast.stmt) -> bool:
        lines = range(statement.lineno, (statement.end_lineno or 0) + 1)
        return any(line in self._known for line in lines)

    def _carry(self, statement: ast.stmt) -> None:
        """Carry a statement of the loop, with what it reads."""
        top = next(s for s in (*self._micro, *self._update) if statement in every_statement(s))
        if top in self._carried:
            return
        self._carried.add(top)
        for node in ast.walk(top):
            allowed = ast.If | ast.Assign | ast.AugAssign | ast.Expr
            if isinstance(node, ast.stmt) and not isinstance(node, allowed):
                raise _NotPortableError
            if isinstance(node, ast.Call):
                self._require_call(node.func)
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                raise _NotPortableError
        for name in loads(top) | {n for s in every_statement(top) for n in _assigned(s)}:
            self._resolve(name, top)

    def _require_call(self, function: ast.expr) -> None:
        """Require a function of Python, or a method that reads a number."""
        if isinstance(function, ast.Name) and hasattr(builtins, function.id):
            return
        owner = function.value if isinstance(function, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in _MODULES:
            return
        if not isinstance(function, ast.Attribute) or function.attr not in _READS:
            raise _NotPortableError

    def _resolve(self, name: str, reader: ast.stmt) -> None:
        """Find what a name is: a counter of updates, the loss, the norm, a setting, a state of the log."""
        where = [s for s, bound in self._bound if bound == name]
        if name in _TAKEN:
            raise _NotPortableError
        if name == self._loss.result:
            spans = self._loss.lines
            if not all(any(a <= s.lineno <= b for a, b in spans) for s in where):
                raise _NotPortableError
            return
        inside = [s for s in where if s in self._training]
        outside = [s for s in where if s not in self._training]
        if not where:
            if name in _MODULES:
                self._imports.add(name)
            elif not hasattr(builtins, name):
                raise _NotPortableError
            return
        if len(inside) == 1 and inside[0].lineno in self._norms and not outside:
            self._norm = name
            return
        if len(inside) == 1 and _counts(inside[0]) and inside[0] in self._update:
            begin = self._value(name, outside)
            if not begin.isdecimal():
                raise _NotPortableError
            offset = int(begin) + (inside[0].lineno < reader.lineno)
            if self._counters.setdefault(name, offset) != offset:
                raise _NotPortableError
            return
        if not inside:
            self._settings[name] = self._value(name, outside)
            return
        for statement in inside:
            self._carry(statement)
        if outside:
            self._hold(name, inside, outside)

    def _hold(self, name: str, inside: Sequence[ast.stmt], outside: Sequence[ast.stmt]) -> None:
        """Keep a name from update to update, or let it begin anew in each."""
        last = max(inside, key=lambda s: s.lineno)
        values = {self._assigned_value(s, name) for s in (last, *outside)}
        if last in self._update and len(values) == 1 and _is_constant(last):
            self._fresh[name] = values.pop()
            self._resets.add(last)
            return
        self._settings[name] = self._value(name, outside)
        self._state.add(name)

    def _value(self, name: str, outside: Sequence[ast.stmt]) -> str:
        """Text of the one value that a name has before the loops."""
        if len(outside) != 1 or isinstance(outside[0], ast.AugAssign):
            raise _NotPortableError
        loops = [s for s in ast.walk(self._script.tree) if isinstance(s, LOOPS)]
        if any(outside[0] in every_statement(loop) for loop in loops):
            raise _NotPortableError
        return self._assigned_value(outside[0], name)

    def _assigned_value(self, statement: ast.stmt, name: str) -> str:
        """Text of what an assignment gives a name: a literal, or the time."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise _NotPortableError
        [target], value = statement.targets, statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
            value = next(v for t, v in pairs if isinstance(t, ast.Name) and t.id == name)
        elif not isinstance(target, ast.Name):
            raise _NotPortableError
        is_time = isinstance(value, ast.Call) and not value.args and "time" in loads(value)
        if is_time:
            self._require_call(value.func)  # type: ignore[attr-defined]
            self._imports.add("time")
        elif any(isinstance(n, ast.Call | ast.Name) for n in ast.walk(value)):
            raise _NotPortableError
        return ast.unparse(value)

    # ------------------------------------------------------------------ the function

    def _function(self) -> str:
        """The function that prints an update."""
        number = next((n for n, offset in self._counters.items() if not offset), "number")
        body = [f"global {', '.join(sorted(self._state))}"] if self._state else []
        body += [f"{n} = {number} + {k}" for n, k in self._counters.items() if n != number]
        body += [f"{name} = {value}" for name, value in self._fresh.items()]
        of_micro = [self._text(s) for s in self._micro if s in self._carried]
        loss = self._loss.result
        of_update = [s for s in self._update if s in self._carried and s not in self._resets]
        if of_micro:
            body += [f"for {loss} in losses:", textwrap.indent("\n".join(of_micro), "    ")]
        elif any(loss in loads(s) for s in of_update):
            body.append(f"{loss} = losses[-1]")
        body += [self._text(s) for s in of_update]
        norm = f", {self._norm}" if self._norm else ""
        text = textwrap.indent("\n".join(body), "    ")
        doc = f'"""Print an update as {Path(self._script.name).name} does."""'
        return f"def report({number}, losses, rate{norm}):\n    {doc}\n{text}\n"

    def _text(self, statement: ast.stmt) -> str:
        return textwrap.dedent(self._script.text(statement))


def _assigned(statement: ast.stmt) -> set[str]:
    """Names that a statement itself binds or changes, in its head or its targets."""
    inner = {n for block in blocks(statement) for s in block for n in ast.walk(s)}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in inner
    }


def _prints(statement: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"
        for n in ast.walk(statement)
    )


def _is_step(statement: ast.stmt) -> bool:
    return isinstance(statement, LOOPS | ast.Try | ast.With)


def _counts(statement: ast.stmt) -> bool:
    """Whether a statement adds 1: `step += 1`."""
    return (
        isinstance(statement, ast.AugAssign)
        and isinstance(statement.op, ast.Add)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value == 1
    )


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
