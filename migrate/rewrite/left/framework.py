"""Report a file whose training a framework runs. The file is left unchanged."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.libraries import ACCELERATE_STATES
from migrate.catalogue.target import Target
from migrate.check.hazard import Severity
from migrate.reading.collectives.no_group import calls_without_group
from migrate.reading.replicas.launch import Style
from migrate.rewrite.catalogued import wrong_by_catalogue
from migrate.rewrite.plan import Plan
from migrate.rewrite.rule import Edit, RuleFinding, Wrap
from migrate.rewrite.rules import all_rules, rules_by_name
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_lines
from migrate.syntax.tree import code, is_none, keyword, nodes_of

RULE = "frameworks"
ACCELERATE = "accelerate"
NO_MAIN = (
    "it has no function `main`: put what trains in one, since the code around it runs once, before the "
    "replicas start"
)
PARSERS = frozenset({"parse_args", "parse_args_into_dataclasses", "parse_known_args"})
OPENED = (
    "`accelerate launch --tpu` imports the script before it starts the replicas: {}() at import opens the "
    'TPU in the launcher, and the replicas raise "Runtime is already initialized". Call it in `main`'
)
PARSED = (
    "`accelerate launch --tpu` imports the script before it sets sys.argv: {}() at import reads the "
    "arguments of the launcher. Call it in `main`"
)


def lines_of_cuda(plan: Plan) -> dict[int, cst.CSTNode]:
    """Return the lines that name CUDA and concern a rule, in a file whose training a framework runs."""
    context = plan.context
    others = [change for change in (*plan.edits, *plan.findings) if change.rule != RULE]
    places = {context.position(change.node).line: change.node for change in others}
    return {line: node for line, node in sorted(places.items()) if _names_cuda(node, context)}


def left_to_framework(plan: Plan, user: str) -> Iterator[RuleFinding]:
    """Yield one finding for a file whose training a framework runs, with its lines that name CUDA.

    Args:
        plan: edits and findings of the rules, which are not applied.
        user: the file that calls the framework and uses this file. Empty if this file calls it.
    """
    context = plan.context
    cuda = lines_of_cuda(plan)
    named = at_lines(cuda) if cuda else ""  # all lines, because no other finding names them
    yours = f"; what it says of CUDA itself is yours to change: {named}" if cuda else ""
    own = [
        finding
        for finding in plan.findings
        if finding.rule == RULE and _leaves_script(finding, context.target)
    ]
    if own:
        accelerated = own[0].subject == ACCELERATE and not context.for_torch_tpu
        launch = _launched(context) if accelerated else ""
        message = f"{own[0].message}{launch}{yours}"
        yield RuleFinding(RULE, own[0].node, message, subject=own[0].subject)
        if accelerated and NO_MAIN not in launch:
            yield from _too_early(context)
    elif cuda or not user:
        place = next(iter(cuda.values()), next(iter(context.module.body), context.module))
        message = (
            f"a framework runs the training of {user or 'this script'}: this file is left as it is"
        )
        yield RuleFinding(RULE, place, f"{message}{yours}")
    yield from _beside(plan, cuda)


def _beside(plan: Plan, cuda: Container[int]) -> Iterator[RuleFinding]:
    """Yield findings that also apply if a framework runs the training; as hints on the listed lines.

    Args:
        plan: edits and findings of the rules, which are not applied.
        cuda: the lines that the finding of the file names.
    """
    codes = {code for rule in all_rules() if rule.beside_frameworks for code in rule.codes}
    for change in (*plan.edits, *plan.findings):
        rule = rules_by_name().get(change.rule)  # None for a construct that no rule handles
        if isinstance(change, Wrap) or (change.code or (rule.code if rule else "")) not in codes:
            continue
        if change.rule == RULE and not _has_no_backend(change, plan.context.target):
            continue  # otherwise the finding is reported above, or the frameworks work together
        if _is_without_group(change.node, plan.context):
            continue  # it raises, which another finding reports
        if isinstance(change, Edit):
            wrong, how_bad = change.wrong, change.severity
            if not wrong and how_bad is None:
                wrong, how_bad, _ = wrong_by_catalogue(change, plan.context)
            how_bad = how_bad or rules_by_name()[change.rule].edited
            change = RuleFinding(
                change.rule, change.node, wrong or change.message, how_bad, change.code
            )
        named = plan.context.position(change.node).line in cuda
        yield replace(change, is_hint=named or change.severity is Severity.INFO)


def _is_without_group(node: cst.CSTNode, script: Workspace) -> bool:
    """Whether `node` is a call of torch.distributed, its name or its line, in a file that joins no group."""
    for call in calls_without_group(script):
        above = script.parent(call)
        if node in (call, call.func, above, script.parent(above)):
            return True
    return False


def _has_no_backend(finding: RuleFinding | Edit, target: Target) -> bool:
    """Whether the framework of a finding does not run on TPUs."""
    entry = (
        catalogue.of_import(finding.subject, target) if isinstance(finding, RuleFinding) else None
    )
    return entry is not None and entry.code != ""


def _leaves_script(finding: RuleFinding, target: Target) -> bool:
    """Whether the framework of a finding runs the training of the script."""
    entry = catalogue.of_import(finding.subject, target)
    return entry is not None and entry.leaves_script


def _too_early(script: Workspace) -> Iterator[RuleFinding]:
    """Yield what a script does at import and must not do under `accelerate launch --tpu`.

    The launcher imports the script in its own process. After that it sets `sys.argv` and starts the replicas.
    """
    if script.launch.style is Style.SPAWN or script.source.is_notebook:
        return
    for node in script.launch.reached(script.launch.import_roots, live=True):
        if not isinstance(node, cst.Call):
            continue
        if script.qualified_name(node.func) in ACCELERATE_STATES:
            yield RuleFinding(RULE, node, OPENED.format(code(node.func)))
        elif _reads_command_line(node):
            yield RuleFinding(RULE, node, PARSED.format(code(node.func)))


def _reads_command_line(call: cst.Call) -> bool:
    """Whether `call` parses the arguments of the process: `parser.parse_args()`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in PARSERS:
        return False
    argument = keyword(call, "args") or next(
        (arg for arg in call.args if arg.keyword is None), None
    )
    return argument is None or is_none(argument.value)


def _launched(script: Workspace) -> str:
    """Return what a script lacks for `accelerate launch --tpu`. Empty if it lacks nothing.

    The launcher imports the script, calls a function of it in each replica, and passes no arguments.
    """
    if script.launch.style is Style.SPAWN:
        return ""
    functions = {
        function.name.value: function
        for function in script.module.body
        if isinstance(function, cst.FunctionDef)
    }
    guard = script.launch.guard
    main = functions.get("main")
    if main is not None:
        return f"; {_lacks_arguments(main)}" if _lacks_arguments(main) else ""
    if guard is None:
        runs = any(
            isinstance(statement, cst.For | cst.While | cst.With)
            for statement in script.module.body
        )
        # Without them it is a part of a program that another file starts.
        return f"; {NO_MAIN}" if runs else ""
    called = dict.fromkeys(code(call.func) for call in script.below(guard, cst.Call))
    below = [functions[name] for name in called if name in functions]
    training = [function for function in below if _trains(function, script)] or below
    if not training:
        return f"; {NO_MAIN}"
    if len(training) > 1:
        named = ", ".join(f"`{function.name.value}`" for function in training)
        return f"; {NO_MAIN} (below the guard it calls {named})"
    (started,) = training
    name = started.name.value
    lacks = _lacks_arguments(started)
    return f"; it has no function `main`: add --main_training_function {name}" + (
        f"; {lacks}" if lacks else ""
    )


def _trains(function: cst.FunctionDef, script: Workspace) -> bool:
    """Whether `function` trains, or gets or creates the object that runs the training."""
    if script.effects.of(function) or any(
        script.effects.is_step_loop(loop)
        for loop in nodes_of(function.body, cst.For | cst.While)  # type: ignore[arg-type]
    ):
        return True
    calls = list(nodes_of(function.body, cst.Call))
    if any(
        script.effects.of(call)
        or script.effects.has_steps(call)
        or script.qualified_name(call.func) in ACCELERATE_STATES
        for call in calls
    ):
        return True
    return any(
        _holds_state(arg, script)
        for call in script.callers.get(id(function), ())
        for arg in call.args
    )


def _holds_state(arg: cst.Arg, script: Workspace) -> bool:
    """Whether `arg` is an object with which Accelerate runs the training: `do_train(config, accelerator)`."""
    if not isinstance(arg.value, cst.Name):
        return False
    return any(
        isinstance(value, cst.Call) and script.qualified_name(value.func) in ACCELERATE_STATES
        for value in script.bound_values(arg.value)
    )


def _lacks_arguments(function: cst.FunctionDef) -> str:
    """Return a message about parameters that the launcher does not pass. Empty if there are none."""
    if function.decorators:
        return ""  # a decorator may pass arguments: `@hydra.main()`
    parameters = function.params
    names = [
        parameter.name.value
        for parameter in (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
        if parameter.default is None
    ]
    if not names:
        return ""
    name = function.name.value
    listed = ", ".join(f"`{name}`" for name in names)
    return f"`{name}` is called without arguments: make {listed} in it, not below `__main__`"


def _names_cuda(node: cst.CSTNode, script: Workspace) -> bool:
    """Whether the first line of `node` names CUDA, or something imported from a module of CUDA."""
    line = script.position(node).line
    text = script.source.text.splitlines()[line - 1]
    if "cuda" in text.lower() or "nccl" in text:
        return True
    names = (
        script.qualified_name(name) or ""
        for name in nodes_of(node, cst.Name | cst.Attribute)  # type: ignore[arg-type]
        if script.position(name).line == line
    )
    return any(name.startswith("torch.cuda.") for name in names)
