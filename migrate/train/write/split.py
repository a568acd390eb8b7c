"""The compiler's source as two files: the model's classes, and the loss of one batch."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from migrate.train.slice.text import first_line

STEP, EVALUATION = "Step", "Evaluation"


@dataclass(frozen=True)
class SplitSource:
    """Sources of both files.

    Attributes:
        model: `model.py`.
        loss: `loss.py`, without the function that takes a batch.
        functions: `functions.py`: methods that are functions of the script; "" if there are none.
        evaluations: `evaluate.py`: methods that are evaluations of the script; "" if there are none.
    """

    model: str
    loss: str
    functions: str = ""
    evaluations: str = ""


def split(
    modeling: str,
    script: str,
    methods: Collection[str] = (),
    name: str = STEP,
    evaluations: Collection[str] = (),
) -> SplitSource:
    """Split a port's source: what only the step reads is the loss.

    Args:
        modeling: `modeling.py` of the port.
        script: name of the script, for the docstrings.
        methods: methods of the step that become a class of their own.
        name: name of the step's class.
        evaluations: methods of the step that evaluate.
    """
    if name == STEP:
        modeling, called = with_called_methods(modeling, methods, name)
        methods = {*methods} - called
    tree = ast.parse(modeling)
    step_name = name
    groups = [_apart(tree, set(methods), name), _apart(tree, set(evaluations), name)]
    apart = [*groups[0], *groups[1]]
    lines = modeling.splitlines()
    head: list[str] = []
    nodes: dict[str, ast.stmt] = {}
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom():
                head.append(ast.unparse(node).replace("from .config", "from model"))
            case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                nodes[defined] = node
            case ast.Assign([ast.Name(defined)]) | ast.AnnAssign(ast.Name(defined)):
                nodes[defined] = node
            case ast.Expr(ast.Constant()):
                pass  # the docstring: each file has its own
            case _:
                raise AssertionError(f"no place in the program for {ast.unparse(node)}")
    step = nodes[step_name]
    assert isinstance(step, ast.ClassDef)
    step.body = [member for member in step.body if member not in apart]
    setup = [n for n in step.body if isinstance(n, ast.FunctionDef) and n.name == "setup"]
    named = _reach({n for part in (*step.bases, *setup) for n in _names(part)}, nodes)
    classes = {name for name in named if isinstance(nodes[name], ast.ClassDef)}
    model = _reach(classes, nodes) - {step_name}
    rest = [name for name in nodes if name not in model]
    of_loss = _reach({step_name}, {name: nodes[name] for name in rest})
    # What neither reads stays where it was.
    read = [{name for part in group for name in _names(part)} for group in groups]
    helpers = [_reach(names, nodes) - model - of_loss for names in read]
    read = [
        names.union(*(_names(nodes[n]) for n in own))
        for names, own in zip(read, helpers, strict=True)
    ]
    loss = [name for name in rest if name not in helpers[0] | helpers[1]]

    def member(node: ast.stmt) -> str:
        return "\n".join(lines[first_line(node) - 1 : node.end_lineno])

    def text(names: list[str]) -> str:
        parts = []
        for name in names:
            node = nodes[name]
            dropped = {
                line
                for part in (apart if name == step_name else ())
                for line in range(first_line(part), (part.end_lineno or 0) + 1)
            }
            span = range(first_line(node), (node.end_lineno or 0) + 1)
            parts.append(
                "\n".join(lines[line - 1] for line in span if line not in dropped).rstrip()
            )
        return "\n\n\n".join(parts)

    shared = sorted(model & {n for name in loss for n in _names(nodes[name])})
    imports = "\n".join(head)
    of_model = "\n".join(line for line in head if not line.startswith("from model import"))
    imported = f"\nfrom model import {', '.join(shared)}" if shared else ""
    return SplitSource(
        f'"""The model of {script} in Flax."""\n\n{of_model}\n\n\n'
        f"{text([name for name in nodes if name in model])}\n",
        f'"""The loss of {script}: what its training step computes of a batch."""\n\n'
        f"{imports}{imported}\n\n\n{text(loss)}\n",
        *(
            _functions_text(
                title,
                (step_name, called),
                imports,
                apart_group,
                [*map(member, apart_group)],
                text([n for n in rest if n in own]),
                sorted(names & model),
                sorted(names & set(loss)),
            )
            for title, called, apart_group, own, names in zip(
                (
                    f"Functions of {script} that its loss calls, as methods of the step.",
                    f"The evaluation of {script}: what it computes of a batch.",
                ),
                (functions_class(step_name), EVALUATION),
                groups,
                helpers,
                read,
                strict=True,
            )
        ),
    )


def with_called_methods(
    modeling: str, methods: Collection[str], step: str
) -> tuple[str, frozenset[str]]:
    """Let a step call its methods where it begins with the same statements; the source, and these methods.

    The script calls them there: `loss = get_loss(model, x, y) / 2`.
    """
    called = set[str]()
    for name in methods:
        tree = ast.parse(modeling)
        own = _apart(tree, {name}, step)
        [call] = _apart(tree, {"__call__"}, step)
        edited = _calling(modeling, own[0], call) if own else ""
        if edited:
            modeling = edited
            called.add(name)
    return modeling, frozenset(called)


def _calling(modeling: str, method: ast.stmt, call: ast.stmt) -> str:
    """The source with a call of the method in place of its statements; "" if they are others."""
    assert isinstance(method, ast.FunctionDef)
    assert isinstance(call, ast.FunctionDef)
    *first, last = method.body
    count = len(first)
    taken = [a.arg for a in method.args.args]
    plain = ast.arguments([], method.args.args, None, [], [], None, [])
    if not isinstance(last, ast.Return) or last.value is None:
        return ""
    if ast.dump(plain) != ast.dump(method.args) or not {*taken} <= {a.arg for a in call.args.args}:
        return ""
    if not first or [*map(ast.dump, first)] != [*map(ast.dump, call.body[:count])]:
        return ""
    value = ast.dump(last.value)
    same = [
        node
        for statement in call.body[count:]
        for node in ast.walk(statement)
        if isinstance(node, ast.expr) and ast.dump(node) == value
    ]
    if len(same) != 1:
        return ""
    nodes = [node for statement in first for node in ast.walk(statement)]
    kept = [n for s in call.body[count:] for n in ast.walk(s) if n not in {*ast.walk(same[0])}]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if stored & {n.id for n in kept if isinstance(n, ast.Name)}:
        return ""  # the step reads more of what they compute
    lines = modeling.splitlines()
    start, end = same[0].lineno - 1, (same[0].end_lineno or 0) - 1
    head = lines[start].encode()[: same[0].col_offset].decode()
    tail = lines[end].encode()[same[0].end_col_offset :].decode()
    passed = f"self.{method.name}({', '.join(name for name in taken if name != 'self')})"
    lines[start : end + 1] = [f"{head}{passed}{tail}"]
    del lines[call.body[0].lineno - 1 : call.body[count - 1].end_lineno]
    return "\n".join(lines) + "\n"


def functions_class(step: str) -> str:
    """Name of the class that has the script's functions as methods, beside those of a step."""
    return "Functions" if step == STEP else f"{step}Functions"


def _functions_text(
    title: str,
    names: tuple[str, str],
    imports: str,
    apart: Sequence[ast.stmt],
    members: Sequence[str],
    helpers: str,
    of_model: Sequence[str],
    of_loss: Sequence[str],
) -> str:
    """A file whose class has methods beside those of the step; `names` are the step's and the class's."""
    if not apart:
        return ""
    step, called = names
    what = "the evaluations" if called == EVALUATION else "the functions"
    models = f"from model import {', '.join(of_model)}\n" if of_model else ""
    losses = ", ".join(dict.fromkeys((*of_loss, step)))
    before = f"{helpers}\n\n\n" if helpers else ""
    body = "\n\n".join(members)
    return (
        f'"""{title}"""\n\n'
        f"{imports}\nfrom loss import {losses}\n{models}\n\n"
        f"{before}class {called}({step}):\n"
        f'    """The step with {what} of the script."""\n\n{body}\n'
    )


def _apart(tree: ast.Module, methods: Collection[str], step: str) -> list[ast.stmt]:
    return [
        member
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == step
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name in methods
    ]


def _reach(start: set[str], nodes: Mapping[str, ast.stmt]) -> set[str]:
    reached: set[str] = set()
    queue = [name for name in start if name in nodes]
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += [inner for inner in _names(nodes[name]) if inner in nodes]
    return reached


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
