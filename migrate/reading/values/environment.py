"""Environment variables: the literals that name them, and the uses of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import EXITS, RANKS, words
from migrate.syntax.tree import code, keyword, last_part, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

ENVIRON = "os.environ"
# Variables that torchrun sets in addition to the ranks, and torch_xla.launch does not.
OF_TORCHRUN = words(
    "MASTER_ADDR MASTER_PORT GROUP_RANK ROLE_RANK GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_USE_AGENT_STORE"
)
BY_TORCHRUN = "is_torchelastic_launched"
CALLS = frozenset({"os.getenv", "os.putenv"})


def access(node: cst.CSTNode, context: Parsed) -> cst.CSTNode | None:
    """Return the expression in which the literal `node` names an environment variable, or None.

    Examples: `os.environ['RANK']`, `os.environ.get('RANK', 0)`, `os.getenv('RANK')`, `os.putenv('RANK',
    '0')`, `'RANK' in os.environ`.
    """
    above = context.parent(node)
    if isinstance(above, cst.Index):
        subscript = context.parent(context.parent(above))
        if isinstance(subscript, cst.Subscript):
            return subscript if context.qualified_name(subscript.value) == ENVIRON else None
    if isinstance(above, cst.Arg):
        call = context.parent(above)
        if isinstance(call, cst.Call) and call.args[0] is above:
            name = context.qualified_name(call.func) or ""
            return call if name in CALLS or name.startswith(f"{ENVIRON}.") else None
    if isinstance(above, cst.Comparison) and above.left is node and len(above.comparisons) == 1:
        other = above.comparisons[0]
        asked = isinstance(other.operator, cst.In | cst.NotIn)
        container = other.comparator
        if isinstance(container, cst.Call) and isinstance(container.func, cst.Attribute):
            container = container.func.value  # os.environ.keys()
        return above if asked and context.qualified_name(container) == ENVIRON else None
    return None


def environment_name(node: cst.CSTNode, context: Parsed) -> str | None:
    """Return the variable that the literal `node` names in an access to the environment."""
    return string_value(node) if access(node, context) is not None else None


def is_read(node: cst.CSTNode, context: Parsed) -> bool:
    """Whether the literal `node` names a variable whose value or existence is read."""
    variable = access(node, context)
    if isinstance(variable, cst.Subscript):
        return not _is_target(variable, context)
    if isinstance(variable, cst.Call):
        name = context.qualified_name(variable.func) or ""
        return not name.endswith((".setdefault", ".putenv"))
    return variable is not None


def _is_target(node: cst.CSTNode, context: Parsed) -> bool:
    """Whether a statement assigns to `node` or deletes it, alone or in a tuple."""
    above = context.parent(node)
    while isinstance(above, cst.Element | cst.Tuple | cst.List | cst.StarredElement):
        node, above = above, context.parent(above)
    if isinstance(above, cst.For):
        return above.target is node
    return isinstance(above, cst.AssignTarget | cst.Del)


SETTING = (cst.Call, cst.SimpleString, cst.ConcatenatedString)


def sets(name: str, context: Parsed, read: cst.CSTNode | None = None) -> bool:
    """Whether the script sets the variable `name` itself, before the read `read` (if given).

    A branch that excludes the read does not count: `if "RANK" in os.environ: … else: os.environ[name] = …`.
    Nor does a statement that runs after the read: `os.environ[name] = str(port())`, where `port` reads the
    variable.
    """
    return any(
        _sets(node, name, context)
        and (
            read is None
            or not (
                _may_be_passed_by(node, name, read, context) or _comes_after(node, read, context)
            )
        )
        for node in context.all_of(*SETTING)
    )


def _comes_after(node: cst.CSTNode, read: cst.CSTNode, context: Parsed) -> bool:
    """Whether the function around `node`, which sets a variable, runs `read` first."""
    around, reading = context.function_around(node), context.function_around(read)
    end = context.place(context.statement_around(node))
    if around is reading:
        return context.place(read) <= end
    root = context.module if around is None else around
    earlier = (
        call
        for call in context.below(root, cst.Call)
        if context.function_around(call) is around and context.place(call) <= end
    )
    return any(function is reading for call in earlier for function in _run_by(call, context))


def _run_by(call: cst.CSTNode, context: Parsed) -> Iterator[cst.FunctionDef]:
    """Yield the functions of the script that the calls in `call` run, directly or through others."""
    seen: set[int] = set()
    waiting: list[cst.CSTNode] = [call]
    while waiting:
        for inner in context.below(waiting.pop(), cst.Call):
            for function in context.called(inner):
                if id(function) not in seen:
                    seen.add(id(function))
                    waiting.append(function.body)
                    yield function


def _may_be_passed_by(node: cst.CSTNode, name: str, read: cst.CSTNode, context: Parsed) -> bool:
    """Whether the function around `read` may reach it by a branch other than that of `node`."""
    if context.function_around(node) is not context.function_around(read):
        return False
    after = {id(above) for above in context.ancestors(read)}
    for chain in context.ancestors(node):
        if isinstance(chain, cst.FunctionDef) or id(chain) in after:
            return False
        if not isinstance(chain, cst.If) or isinstance(context.parent(chain), cst.If):
            continue
        branches = list(_branches(chain))
        if any(_mentions(branch.test, name) for branch in branches if isinstance(branch, cst.If)):
            return False
        bodies = [branch.body for branch in branches]
        has_else = isinstance(branches[-1], cst.Else)
        return not has_else or not all(_leaves(b) or _mentions(b, name) for b in bodies)
    return False


def _branches(chain: cst.If) -> Iterator[cst.If | cst.Else]:
    """Yield `if`, each `elif`, and `else`."""
    branch: cst.If | cst.Else | None = chain
    while branch is not None:
        yield branch
        branch = branch.orelse if isinstance(branch, cst.If) else None


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return any(string_value(string) == name for string in nodes_of(node, cst.SimpleString))


def _leaves(body: cst.BaseSuite) -> bool:
    """Whether the last statement of `body` leaves the function or ends the program."""
    last: cst.CSTNode = body.body[-1]
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    if isinstance(last, cst.Return | cst.Raise):
        return True
    call = last.value if isinstance(last, cst.Expr) else None
    return isinstance(call, cst.Call) and code(call.func) in EXITS


def _sets(node: cst.CSTNode, name: str, context: Parsed) -> bool:
    if isinstance(node, cst.Call):
        is_update = context.qualified_name(node.func) == f"{ENVIRON}.update"
        return is_update and keyword(node, name) is not None
    named = string_value(node) == name and access(node, context) is not None
    return named and not is_read(node, context)


def of_torchrun_alone(node: cst.CSTNode, context: Parsed, *, spawns: bool) -> str | None:
    """Return the torchrun variable that `node` needs and nothing sets before, or None."""
    name = _needed(node, context, spawns=spawns)
    return None if name is None or sets(name, context, node) else name


def _needed(node: cst.CSTNode, context: Parsed, *, spawns: bool) -> str | None:
    """Return the torchrun variable that the literal `node` names, if the script fails without it.

    `os.environ["MASTER_ADDR"]` and `int(os.getenv("MASTER_PORT"))` fail. A default, or a test whether
    torchrun has set its variables, prevents the failure. A test for the rank does not: a replica that
    `torch_xla.launch` starts may have the rank without the other variables.

    Args:
        node: the literal.
        context: the script.
        spawns: whether the script starts its replicas itself: they find a rank only if it sets one.
    """
    name = environment_name(node, context)
    if name not in OF_TORCHRUN or not is_read(node, context):
        return None
    variable = access(node, context)
    if isinstance(variable, cst.Call):
        above = context.parent(context.parent(variable))
        is_number = isinstance(above, cst.Call) and code(above.func) == "int"
        if len(variable.args) > 1 or not is_number:
            return None
    elif not isinstance(variable, cst.Subscript):
        return None
    return None if _is_asked_for(node, context, spawns) else name


def _is_asked_for(node: cst.CSTNode, context: Parsed, spawns: bool) -> bool:
    """Whether `node` is read only after a test of the environment, or inside of a `try`."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If | cst.IfExp | cst.BooleanOperation):
            asked = above.left if isinstance(above, cst.BooleanOperation) else above.test
            if below is not asked and _asks(asked, context, spawns):
                return True
        if isinstance(above, cst.Try) and below is above.body:
            return True
        below = above
    return False


def _asks(test: cst.CSTNode, context: Parsed, spawns: bool) -> bool:
    """Whether `test` asks, directly or through functions, for variables that only torchrun sets.

    Variables of other launchers count too.
    """
    roots = [test, *(function.body for function in _run_by(test, context))]
    called = (call for root in roots for call in context.below(root, cst.Call))
    if any(last_part(call.func) == BY_TORCHRUN for call in called):
        return True
    asked = {
        name
        for root in roots
        for string in context.below(root, cst.SimpleString)
        if (name := environment_name(string, context)) is not None
    }
    return any(name not in RANKS or (spawns and not sets(name, context)) for name in asked)
