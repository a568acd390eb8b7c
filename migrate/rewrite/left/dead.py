"""Find variables and options of the command line that edits leave unused."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import libcst as cst

from migrate.check.severity import Severity
from migrate.model.pure import PURE_CALLS
from migrate.rewrite.edit import Edit, RuleFinding, Wrap
from migrate.rewrite.plan import Plan
from migrate.rewrite.results import Note
from migrate.rewrite.workspace import Workspace
from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, nodes, nodes_of
from migrate.syntax.walk import children
from migrate.syntax.walk_ast import walk

# Functions of torch.cuda without effects, by the beginning of their last part.
ASKS = ("get_", "mem_get_info", "memory_", "max_memory_", "device_count", "current_device", "is_")
# Calls that give a function its variables in another way than by name.
SEES_ALL = frozenset({"locals", "eval", "exec", "vars"})


def without_dead(
    plan: Plan, findings: Sequence[RuleFinding], rewritten: cst.Module
) -> tuple[Plan, list[RuleFinding]]:
    """Return a plan that also removes variables which its edits leave unused, and the findings that remain.

    Only variables of functions are removed, if a finding is about their value, or an edit took the last use
    of it, and computing it has no effect: `local_rank = int(os.environ["LOCAL_RANK"])` if only
    `torch.cuda.set_device(local_rank)` used it.

    Args:
        plan: the plan of the first turn.
        findings: the remaining manual work.
        rewritten: the tree of the script with the edits of the plan.
    """
    script = plan.context
    lines = {}
    for finding in findings:
        line = _assignment(finding.node, script)
        if line is not None:
            lines[id(line)] = (line, finding.rule)
    for line, rule in _assigned_to(plan.edits, script):
        lines.setdefault(id(line), (line, rule))
    if not lines:
        return plan, list(findings)
    wrapped = {
        id(end) for wrap in plan.edits if isinstance(wrap, Wrap) for end in (wrap.first, wrap.last)
    }
    after = _Functions(rewritten)
    before = _Functions(script.module)
    edits = []
    for line, rule in lines.values():
        function = script.function_around(line)
        assert isinstance(function, cst.FunctionDef)
        now = after.at(before.place(function))
        if now is not None and id(line) not in wrapped and _is_dead(line, function, now):
            text = code(line.body[0])
            edits.append(
                Edit(
                    rule,
                    line,
                    lambda _: cst.RemoveFromParent(),
                    f"remove `{text}`: nothing uses it any more",
                    **_harm(line, text, plan.edits),
                )
            )
    if not edits:
        return plan, list(findings)
    gone = {id(node) for edit in edits for node in nodes(edit.node)}
    kept = [finding for finding in findings if id(finding.node) not in gone]
    # An edit inside of a removed line is not needed.
    others = [edit for edit in plan.edits if id(edit.node) not in gone]
    return replace(plan, edits=(*others, *edits)), kept


def _harm(line: cst.SimpleStatementLine, text: str, edits: Iterable[Edit | Wrap]) -> dict[str, Any]:
    """Return what is wrong with an unedited line that goes: as an edit inside of it says, or nothing."""
    inside = {id(node) for node in nodes(line)}
    for edit in edits:
        if isinstance(edit, Edit) and id(edit.node) in inside and edit.wrong:
            return {"wrong": edit.wrong, "severity": edit.severity, "code": edit.code}
    return {"wrong": f"`{text}`: only what the rewrite removes uses it", "severity": Severity.INFO}


def _assigned_to(
    edits: Iterable[Edit | Wrap], script: Workspace
) -> Iterator[tuple[cst.SimpleStatementLine, str]]:
    """Yield the statements that assign variables which edits of the same function name, with an edit's rule.

    Each function is read once, however many edits it has.
    """
    by_function: dict[int, tuple[cst.FunctionDef, dict[str, str]]] = {}
    for edit in edits:
        function = script.function_around(edit.node)
        if isinstance(function, cst.FunctionDef) and not isinstance(edit.node, cst.FunctionDef):
            _, rules = by_function.setdefault(id(function), (function, {}))
            for name in script.below(edit.node, cst.Name):
                rules.setdefault(name.value, edit.rule)
    for function, rules in by_function.values():
        for assign in nodes_of(function, cst.Assign) if rules else ():
            named = sorted(_names(assign) & rules.keys())
            if named and script.function_around(assign) is function:
                line = _assignment(assign.value, script)
                if line is not None:
                    yield line, rules[named[0]]


def _assignment(node: cst.CSTNode, script: Workspace) -> cst.SimpleStatementLine | None:
    """Return the statement of a function that only assigns the value around `node` to variables."""
    for above in script.within_statement(node):
        if isinstance(above, cst.SimpleStatementLine):
            whole = len(above.body) == 1 and isinstance(above.body[0], cst.Assign)
            if not whole or script.function_around(above) is None:
                return None
            assign = cst.ensure_type(above.body[0], cst.Assign)
            return above if _only_asks(assign.value, script) and _names(assign) else None
    return None


def _names(assign: cst.Assign) -> frozenset[str]:
    """Return the variables that an assignment binds. None if it binds anything else."""
    if len(assign.targets) != 1:
        return frozenset()
    target = assign.targets[0].target
    parts = [e.value for e in target.elements] if isinstance(target, cst.Tuple) else [target]
    if not all(isinstance(part, cst.Name) for part in parts):
        return frozenset()
    return frozenset(part.value for part in parts if isinstance(part, cst.Name))


def _only_asks(value: cst.BaseExpression, script: Workspace) -> bool:
    """Whether computing `value` has no effect, except that it may raise."""
    if any(isinstance(node, cst.NamedExpr | cst.Await | cst.Yield) for node in nodes(value)):
        return False
    for call in script.below(value, cst.Call):
        name = script.qualified_name(call.func) or ""
        last = code(call.func).rpartition(".")[2]
        asks = name.startswith("torch.cuda.") and last.startswith(ASKS)
        if not asks and last not in PURE_CALLS and name != "os.getenv":
            return False
    return True


def _is_dead(line: cst.SimpleStatementLine, before: cst.FunctionDef, now: cst.FunctionDef) -> bool:
    """Whether the function used the variables of `line` before the edits, and uses none of them now."""
    names = _names(cst.ensure_type(line.body[0], cst.Assign))
    for call in nodes_of(before, cst.Call):
        if code(call.func) in SEES_ALL:
            return False
    return not names.isdisjoint(_read(before)) and not (
        names & _read(now) or any(_is_declared(now, name) for name in names)
    )


def _read(function: cst.FunctionDef) -> set[str]:
    """Return the names that a function reads. Bindings, names of attributes and of arguments do not count.

    A node may stand in an edited tree twice, once as a binding, once as a read.
    """
    names: set[str] = set()
    waiting: list[cst.CSTNode] = [function]
    while waiting:
        node = waiting.pop()
        if type(node) is cst.Name:
            names.add(node.value)
        elif type(node) is cst.Attribute or type(node) is cst.Arg:
            waiting.append(node.value)
        elif type(node) is cst.AssignTarget:
            target = node.target
            parts = (
                [e.value for e in target.elements] if isinstance(target, cst.Tuple) else [target]
            )
            waiting += [part for part in parts if not isinstance(part, cst.Name)]
        else:
            waiting += children(node)
    return names


def _is_declared(function: cst.FunctionDef, name: str) -> bool:
    """Whether the variable belongs to the module or to another function, so that other code sees it."""
    statements = nodes_of(function, cst.Global | cst.Nonlocal)  # type: ignore[arg-type]
    return any(item.name.value == name for statement in statements for item in statement.names)


class _Functions:
    """Functions of a module by position: the names around them, and the number of equal names before."""

    def __init__(self, module: cst.Module) -> None:
        self._places: dict[int, tuple[str, int]] = {}
        self._functions: dict[tuple[str, int], cst.FunctionDef] = {}
        self._times: Counter[str] = Counter()
        for name, function in _named(module, ""):
            place = name, self._times[name]
            self._times[name] += 1
            self._places[id(function)] = place
            self._functions[place] = function

    def place(self, function: cst.FunctionDef) -> tuple[str, int]:
        """Return the position of a function of the module."""
        return self._places[id(function)]

    def at(self, place: tuple[str, int]) -> cst.FunctionDef | None:
        """Return the function at a position, if there is one."""
        return self._functions.get(place)


def _named(node: cst.CSTNode, around: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Yield the functions below `node` with their dotted names, in the order of the source."""
    for child in children(node):
        if isinstance(child, cst.BaseSmallStatement | cst.BaseExpression):
            continue  # holds no definition
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            name = f"{around}.{child.name.value}"
            if isinstance(child, cst.FunctionDef):
                yield name, child
            yield from _named(child, name)
        else:
            yield from _named(child, around)


def unread_options(
    before: str,
    after: str,
    edits: Sequence[Note],
    findings: Sequence[Note],
    elsewhere: Set[str] = frozenset(),
) -> Iterator[Note]:
    """Yield a finding for each command-line option that nothing in the rewritten script reads any more.

    Args:
        before, after: the script before and after the rewrite.
        edits: the edits, at lines of the original.
        findings: findings that are reported. An option whose line has one is not reported again.
        elsewhere: the attributes that files which the script imports read.
    """
    if not edits or "add_argument" not in before:
        return
    old, new = [*walk(syntax_tree(before))], [*walk(syntax_tree(after))]
    was_read, is_read = _attribute_reads(old), elsewhere | _attribute_reads(new).keys()
    declared = {attribute for _, attribute, _ in _options(new)}
    reported = {finding.line for finding in findings}
    for flag, attribute, call in _options(old):
        lines = was_read.get(attribute, [])
        gone = lines and attribute in declared and attribute not in is_read
        if not gone or call.lineno in reported:
            continue
        nearest = min(edits, key=lambda edit: min(abs(edit.line - line) for line in lines))
        yield Note(
            call.lineno,
            call.col_offset + 1,
            nearest.rule,
            f"{flag} has no effect in the rewritten file: the code that reads it was removed "
            f"({at_line(lines[0])})",
            severity=Severity.INFO,
            subject=flag,
        )


def _options(script: Iterable[ast.AST]) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the options of command lines: the flag, the attribute that holds its value, the declaration."""
    for node in script:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        flags = [text for text in texts if isinstance(text, str) and text.startswith("-")]
        if node.func.attr != "add_argument" or not flags:
            continue
        long = next((flag for flag in flags if flag.startswith("--")), flags[0])
        attributes = [
            keyword.value.value
            for keyword in node.keywords
            if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant)
        ]
        yield long, str((*attributes, long.lstrip("-").replace("-", "_"))[0]), node


def _attribute_reads(script: Sequence[ast.AST]) -> dict[str, list[int]]:
    """Return the lines that read each attribute of an object, and texts that may name one.

    Attributes of modules are left out: `re.compile` is no option.
    """
    modules = {
        (alias.asname or alias.name).partition(".")[0]
        for node in script
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    reads: dict[str, list[int]] = {}
    for node in script:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            reads.setdefault(node.value, []).append(node.lineno)
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        root: ast.expr = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id not in modules:
            reads.setdefault(node.attr, []).append(node.lineno)
    return {name: sorted(lines) for name, lines in reads.items()}
