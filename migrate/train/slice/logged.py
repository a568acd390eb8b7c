"""Log lines of the training loop that stay in `data.py`: they read its names, and values of an update."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.loops import TrainingCalls, loops_around, step_statements
from migrate.train.slice.statements import every_statement, loop_targets, names_read
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    blocks,
    first_line,
    path_to,
    stores,
    with_text,
)

# Where `train.py` puts values of the last update.
UPDATE = "UPDATE"
# Values of an update: the loss, the norm of its gradients, its learning rate, that of the next update.
LOSS, NORM, RATE, NEXT_RATE = "loss", "norm", "rate", "next_rate"
# Methods of a progress bar.
_SHOWS = ("set_postfix", "set_postfix_str", "set_description", "set_description_str")


@dataclass
class UpdateNames:
    """Names that `data.py` gets from the program.

    Attributes:
        names: the names.
        region: statements that read them after the update.
        always: whether they keep their values until the next update.
        training: statements that train.
    """

    names: frozenset[str] = frozenset()
    region: frozenset[ast.stmt] = frozenset()
    always: bool = False
    training: frozenset[ast.stmt] = frozenset()


@dataclass(frozen=True)
class Logged:
    """Log lines that `data.py` has.

    Attributes:
        values: name in the loop → the value of the update that it has.
        lines: lines of the statements that print.
        texts: first and last line of a statement that reads a learning rate → its text in `data.py`.
        tensors: names that are read otherwise than by `item()`, and must be tensors of torch.
        returns: whether functions with the loop give their callers what they return.
    """

    values: Mapping[str, str]
    lines: frozenset[int] = frozenset()
    texts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    tensors: frozenset[str] = frozenset()
    returns: bool = False

    @property
    def assignments(self) -> str:
        """Statements that give the names their values.

        An array of the program waits for the device only where a line reads it.
        """
        taken = {name: f'{UPDATE}["{value}"]' for name, value in self.values.items()}
        taken |= {name: f"torch.tensor(np.asarray({taken[name]}))" for name in self.tensors}
        return "\n".join(f"{name} = {value}" for name, value in taken.items())

    def written(self, script: ScriptText) -> ScriptText:
        """The script with these texts; each line stays where it is."""
        for (first, last), text in self.texts.items():
            script = with_text(script, first, last, text)
        return script


def printing_statements(script: ScriptText, events: TrainingCalls) -> list[ast.stmt]:
    """Statements of the loops around the training step that print, in the order of their lines."""
    every = {
        statement
        for _, body in step_statements(script, events.backward)
        for top in body
        for statement in every_statement(top)
    }
    return sorted((s for s in every if _prints(s)), key=first_line)


def _prints(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Attribute):
        text = ast.unparse(call.func)
        return call.func.attr in _SHOWS or text in ("tqdm.write", "tqdm.tqdm.write")
    return isinstance(call.func, ast.Name) and call.func.id == "print"


def last_return(code: ast.AST | None) -> ast.Return | None:
    """The one `return` of a function, at its end; None if there is none or another one."""
    if not isinstance(code, FunctionNode) or code.decorator_list:
        return None
    last = code.body[-1]
    every = [n for n in ast.walk(code) if isinstance(n, ast.Return)]
    return last if isinstance(last, ast.Return) and last.value and every == [last] else None


def targets_of(statement: ast.stmt) -> frozenset[str]:
    """Names that an assignment of a call alone binds; empty for other statements."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return frozenset()
    [target, *more] = statement.targets
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = frozenset(part.id for part in parts if isinstance(part, ast.Name))
    return names if not more and len(names) == len(parts) else frozenset()


def same_block(code: ast.AST | None, backward: int, step: int) -> bool:
    """Whether two statements stand in one block: each update has one micro-batch then."""
    if code is None:
        return False
    paths = [path_to(code, line) for line in (backward, step)]
    return all(paths) and paths[0][-1][0] is paths[1][-1][0] and backward < step


def logged_values(loss: str, norms: Mapping[str, str]) -> dict[str, str]:
    """Names of the loop that have values of an update.

    Args:
        loss: the script's expression of the loss.
        norms: names of the norm of the gradients.
    """
    return {**({loss: LOSS} if loss.isidentifier() else {}), **norms}


def norm_names(script: ScriptText, lines: Collection[int]) -> dict[str, str]:
    """Names that the clipping at these lines gives the norm of all gradients."""
    return {
        node.targets[0].id: NORM
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign)
        and node.lineno in lines
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
    }


def rate_texts(
    script: ScriptText,
    events: TrainingCalls,
    trained: Mapping[tuple[str, int], Collection[str]],
    steps: Collection[int],
) -> dict[tuple[int, int], str]:
    """Statements of the loop that read the learning rate of the first group, with the program's in its place.

    It is left as it is where it may be another one: it is set in another function, or between updates.

    Args:
        script: the script.
        events: where it trains.
        trained: names of trained modules, optimizers and schedules, by function and its first line.
        steps: lines that step a schedule, or set a rate.
    """
    update = max((f[0].line for f in events.steps), default=0)
    frames = events.backward
    spans = [span for frame in frames for span in map(_span, loops_around(script, frame)[:1])]
    if not all(any(at in span for span in spans) for at in steps):
        return {}  # a function sets rates, at one moment or another
    result = _rate_texts(script, frames[0], update, trained, steps)
    for frame in frames[1:]:
        own = [*map(_span, loops_around(script, frame)[:1])]
        if all(any(at in span for span in own) for at in steps):
            result |= _rate_texts(script, frame, frame.line, trained, steps)
    return result


def _span(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or 0) + 1)


def _rate_texts(
    script: ScriptText,
    frame: Frame,
    update: int,
    trained: Mapping[tuple[str, int], Collection[str]],
    steps: Collection[int],
) -> dict[tuple[int, int], str]:
    """The statements in the loops of one frame, which makes its updates at the line `update`."""
    positions = ((frame.function, frame.first), ("<module>", 1))
    names = {name for position in positions for name in trained.get(position, ())}
    loops = loops_around(script, frame)
    if not loops:
        return {}
    inside, own = _span(loops[-1]), _span(loops[0])
    result = {}
    for statement in every_statement(loops[0]):
        line = statement.lineno
        if any(blocks(statement)) or not any(_is_rate(n, names) for n in ast.walk(statement)):
            continue
        if line > update:
            value = NEXT_RATE if any(update < at < line for at in steps) else RATE
        elif line < loops[-1].lineno or (line in inside and len(loops) == 1):
            # Before the update: the rate that the last step of the schedule has set.
            after = [at for at in steps if at in own]
            if not after or not all(at > update for at in after):
                continue
            value = NEXT_RATE
        else:
            continue
        new = _WithRate(names, value).visit(ast.parse(ast.unparse(statement)))
        result[statement.lineno, statement.end_lineno or 0] = ast.unparse(new)
    return result


class _WithRate(ast.NodeTransformer):
    """Puts the program's learning rate in place of the optimizer's or the schedule's."""

    def __init__(self, names: Collection[str], value: str) -> None:
        self._names, self._value = names, value

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if _is_rate(node, self._names):
            return ast.parse(f'{UPDATE}["{self._value}"]', mode="eval").body
        return self.generic_visit(node)


def _is_rate(node: ast.AST, names: Collection[str]) -> bool:
    """Whether an expression is the learning rate of the first group.

    `optimizer.param_groups[0]["lr"]` or `scheduler.get_last_lr()[0]`.
    """
    match node:
        case ast.Subscript(
            ast.Subscript(ast.Attribute(owner, "param_groups"), ast.Constant(0)), ast.Constant("lr")
        ):
            return ast.unparse(owner) in names
        case ast.Subscript(ast.Call(ast.Attribute(owner, "get_last_lr"), [], []), ast.Constant(0)):
            return ast.unparse(owner) in names
    return False


def read_as_tensors(text: str, names: Collection[str]) -> frozenset[str]:
    """Names that a text reads otherwise than by `name.item()` and `float(name)`, as arrays of JAX have it."""
    tree = ast.parse(text)
    plain = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name() as name, "item"), [], []):
                plain.add(name)
            case ast.Call(ast.Name("float"), [ast.Name() as name], []):
                plain.add(name)
    loaded = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return frozenset(n.id for n in loaded if n.id in names and n not in plain)


def require_after_update(
    script: ScriptText, body: Sequence[ast.stmt], kept: Collection[ast.stmt], names: UpdateNames
) -> None:
    """Require that what is kept reads values of an update where the script has these values.

    Args:
        script: the script.
        body: statements of the function.
        kept: kept statements.
        names: the names, and where they have these values.

    Raises:
        TrainError: another statement may have given a name its value.
    """
    every = {s for top in body for s in every_statement(top)}
    apart = every - names.region - names.training
    others = set[str]().union(*(loop_targets(s) if any(blocks(s)) else stores(s)[0] for s in apart))
    for statement in {*kept} - names.region - names.training:
        read = names_read(statement)
        if isinstance(statement, ast.AugAssign):
            read |= stores(statement)[1]
        lost = read & names.names & (others if names.always else names.names)
        if statement in every and lost:
            raise TrainError(
                f"{script.at(first_line(statement))}: {min(lost)} is not that of the last update here",
                "read it after the update",
            )
