"""Environment variables: which literal names one, and what is done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import code, keyword, nodes_of, string_value
from migrate.reading.values.words import words

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

ENVIRON = "os.environ"
# What torchrun sets beside the ranks, and torch_xla.launch does not.
OF_TORCHRUN = words(
    "MASTER_ADDR MASTER_PORT GROUP_RANK ROLE_RANK GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_USE_AGENT_STORE"
)
CALLS = frozenset({"os.getenv", "os.putenv"})


def access(node: cst.CSTNode, context: Parsed) -> cst.CSTNode | None:
    """Return the expression in which the literal `node` names an environment variable, or None.

    `os.environ['RANK']`, `os.environ.get('RANK', 0)`, `os.getenv('RANK')`, `os.putenv('RANK', '0')`,
    `'RANK' in os.environ`.
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
    """Whether the literal `node` names a variable whose value, or existence, is asked for."""
    found = access(node, context)
    if isinstance(found, cst.Subscript):
        return not isinstance(context.parent(found), cst.AssignTarget | cst.Del)
    if isinstance(found, cst.Call):
        name = context.qualified_name(found.func) or ""
        return not name.endswith((".setdefault", ".putenv"))
    return found is not None


SETTING = (cst.Call, cst.SimpleString, cst.ConcatenatedString)


def sets(name: str, context: Parsed) -> bool:
    """Whether the script sets the variable `name` itself."""
    return any(_sets(node, name, context) for node in context.all_of(*SETTING))


def _sets(node: cst.CSTNode, name: str, context: Parsed) -> bool:
    if isinstance(node, cst.Call):
        is_update = context.qualified_name(node.func) == f"{ENVIRON}.update"
        return is_update and keyword(node, name) is not None
    named = string_value(node) == name and access(node, context) is not None
    return named and not is_read(node, context)


def needed(node: cst.CSTNode, context: Parsed) -> str | None:
    """Return the variable of torchrun that the literal `node` names where the script fails without it.

    `os.environ["MASTER_ADDR"]` and `int(os.getenv("MASTER_PORT"))` fail; a default, or a question around it
    whether the variable is set, keeps them from it.
    """
    name = environment_name(node, context)
    if name not in OF_TORCHRUN or not is_read(node, context):
        return None
    found = access(node, context)
    if isinstance(found, cst.Call):
        above = context.parent(context.parent(found))
        is_number = isinstance(above, cst.Call) and code(above.func) == "int"
        if len(found.args) > 1 or not is_number:
            return None
    elif not isinstance(found, cst.Subscript):
        return None
    return None if _is_asked_for(node, context) else name


def _is_asked_for(node: cst.CSTNode, context: Parsed) -> bool:
    """Whether `node` is read only where the environment has been asked, or where a failure is caught."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If | cst.IfExp | cst.BooleanOperation):
            asked = above.left if isinstance(above, cst.BooleanOperation) else above.test
            if below is not asked and _asks(asked, context):
                return True
        if isinstance(above, cst.Try) and below is above.body:
            return True
        below = above
    return False


def _asks(test: cst.CSTNode, context: Parsed) -> bool:
    """Whether `test` looks at the environment."""
    return any(access(string, context) is not None for string in nodes_of(test, cst.SimpleString))
