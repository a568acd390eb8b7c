"""Effects of one call on the training state, and the functions of the project that it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.words import (
    CALLABLE_SCALER,
    ENVIRONMENT,
    NOT_OPTIMIZERS,
    OPTIMIZER,
    OPTIMIZER_CLASS,
    PROFILER,
    SCALER,
    SCHEDULER,
)
from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kinds import (
    Applied,
    ClassInstance,
    External,
    Partial,
    Result,
    Super,
    Value,
    Values,
)
from migrate.model.calls.scopes import Class, Function, Scope
from migrate.model.calls.values import Evaluator
from migrate.model.project.project import SourceModule

DEEPSPEED = (
    "DeepSpeed's engine runs the backward pass and the step itself: it has no TPU backend, so take plain "
    "DDP first"
)
RPC = "torch.distributed.autograd and RPC have no equivalent on XLA"
CUDA_GRAPH = (
    "a CUDA graph is captured and replayed: XLA compiles every step by itself; take the captured "
    "function out of the graph"
)
FASTAI = "the loop is fastai's own, which has no XLA backend in current releases"
OBSTACLES = {
    re.compile(r"^deepspeed\.initialize\(\)\.(backward|step|train_batch)$"): DEEPSPEED,
    re.compile(r"^torch\.distributed\.autograd\.backward$"): RPC,
    re.compile(
        r"^torch\.cuda\.CUDAGraph\(\)\.replay$|^torch\.cuda\.make_graphed_callables$"
    ): CUDA_GRAPH,
    re.compile(r"^torch\.cuda\.graph$"): CUDA_GRAPH,
    re.compile(r"^fastai\..*\.(fit|fit_one_cycle|fine_tune|fit_flat_cos)$"): FASTAI,
}
# Keyword arguments that only timm's scalers take.
OF_SCALERS = frozenset({"clip_grad", "create_graph", "need_update", "update_grad"})
# Contexts whose body is captured, or warms up for a capture: the CUDA graph replaces the loop.
CAPTURES = frozenset({"torch.cuda.graph", "torch.cuda.stream"})

# A word of each file that trains: not one that only switches gradients off.
TRAINING = re.compile(rb"(?i)backward|zero_grad|optim|loss|(?<!no_)grad(?!_enabled\(False\))")


@dataclass(eq=False, slots=True)
class Running:
    """Functions and effects of one call.

    Args:
        call, scope: the call and its scope.
        effect: its direct effect.
        functions: the functions of the project that it runs.
        bound: how many of the first parameters of such a function get no argument from the call, if any.
        later: the functions that the backward pass runs for it; their effects do not count for the call.
        obstacle: why its effect cannot be put in a step, if so.
    """

    call: ast.Call
    scope: Scope
    effect: Effect = Effect.NONE
    functions: list[Function] = field(default_factory=list)
    bound: dict[Function, int] = field(default_factory=dict)
    later: list[Function] = field(default_factory=list)
    obstacle: str = ""


def running(call: ast.Call, scope: Scope, evaluator: Evaluator) -> Running:
    """Return the functions and effects of `call`, as far as they are plain to see."""
    values = evaluator.values(call.func, scope)
    if isinstance(call.func, ast.Name) and call.func.id == "next" and call.args:
        generators = evaluator.values(call.args[0], scope)
        resumed = (evaluator.attribute(generator, "__next__") for generator in generators)
        values = values.union(*resumed)
    running = Running(call, scope)
    ran = {function for value in values for function in _run_by(value, evaluator)}
    # A set has another order in each process; the answer for a call must not.
    running.functions = sorted(ran, key=_order)
    running.bound = dict(_given_before(values, evaluator))
    later = (
        evaluator.method(value.of, "backward") for value in values if isinstance(value, Applied)
    )
    running.later = sorted({method for method in later if method is not None}, key=_order)
    externals = {value.name for value in values if isinstance(value, External)}
    running.obstacle = next(
        (why for name in sorted(externals) for what, why in OBSTACLES.items() if what.search(name)),
        "",
    )
    if running.obstacle is DEEPSPEED and _steps_optimizer(call):
        running.obstacle = (
            ""  # the engine's own is `engine.step()`: without DeepSpeed this is torch's
        )
    if running.obstacle:
        return running
    if isinstance(call.func, ast.Attribute):
        running.effect = _of_method(call, call.func, scope, running.functions, evaluator)
        if Effect.STEP in running.effect:  # optimizer.step(closure)
            running.functions += _functions_in(call, scope, evaluator)
    elif not running.functions:
        running.effect = _of_scaler(call, values, scope, evaluator)
    return running


def _order(function: Function) -> tuple[Path, int, str]:
    return function.module.path, function.line, function.name


def _given_before(values: Values, evaluator: Evaluator) -> Iterator[tuple[Function, int]]:
    """Yield the functions whose first parameters a call does not pass, with the number of these."""
    for value in values:
        if isinstance(value, Partial):
            yield value.of, value.bound
        elif isinstance(value, Applied) and (forward := evaluator.method(value.of, "forward")):
            # With a `setup_context` of its own the forward takes no context.
            yield forward, int(evaluator.method(value.of, "setup_context") is None)


def _run_by(value: Value, evaluator: Evaluator) -> Iterator[Function]:
    match value:
        case Function():
            yield value
        case Partial(of):
            yield of
        case Class():
            for name in ("__init__", "__post_init__"):
                if method := evaluator.method(value, name):
                    yield method
        case Applied(of):
            if forward := evaluator.method(of, "forward"):
                yield forward
        case ClassInstance(of):
            called = evaluator.method(of, "__call__") or evaluator.method(of, "forward")
            if called is not None:
                yield called


def _steps_optimizer(call: ast.Call) -> bool:
    """Whether `call` is `optimizer.step()`, by the name of the receiver."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "step":
        return False
    return OPTIMIZER.fullmatch(_last_name(function.value)) is not None


def _of_method(
    call: ast.Call,
    function: ast.Attribute,
    scope: Scope,
    functions: list[Function],
    evaluator: Evaluator,
) -> Effect:
    if function.attr == "backward":
        own = functions or _is_in_autograd_function(scope, evaluator)
        return Effect.NONE if own else Effect.BACKWARD
    if function.attr == "step" and _is_optimizer(call, function.value, scope, functions, evaluator):
        return Effect.STEP
    if not functions:
        return _of_scaler(call, evaluator.values(function, scope), scope, evaluator)
    return Effect.NONE


def _is_in_autograd_function(scope: Scope, evaluator: Evaluator) -> bool:
    """Whether `scope` is a method of an autograd function: a backward pass there has its own graph."""
    return (
        isinstance(scope, Function)
        and scope.owner is not None
        and evaluator.is_autograd_function(scope.owner)
    )


def _of_scaler(
    call: ast.Call, values: frozenset[Value], scope: Scope, evaluator: Evaluator
) -> Effect:
    """Return BOTH for `loss_scaler(loss, optimizer, …)`: a scaler of timm or a similar one.

    torch's GradScaler cannot be called, so such a call with an optimizer is of timm's kind.
    """
    if any(isinstance(value, Result) and CALLABLE_SCALER.search(value.name) for value in values):
        return BOTH
    unknown = not any(isinstance(value, Function | Class | ClassInstance) for value in values)
    is_named = unknown and SCALER.fullmatch(_last_name(call.func)) is not None
    if is_named and any(_may_be_optimizer(arg, scope, evaluator) for arg in call.args):
        return BOTH
    # `s(loss, o, clip_grad=1.0)`, whatever the names: nothing of torch's takes these.
    of_torch = any(isinstance(v, External) and v.name.startswith("torch.") for v in values)
    used = any(keyword.arg in OF_SCALERS for keyword in call.keywords) and len(call.args) > 1
    return BOTH if unknown and used and not of_torch else Effect.NONE


def _may_be_optimizer(node: ast.expr, scope: Scope, evaluator: Evaluator) -> bool:
    """Whether an argument is an optimizer: by its origin, otherwise by its name."""
    kinds = {is_optimizer_value(value, evaluator) for value in evaluator.values(node, scope)}
    if kinds - {None}:
        return True in kinds
    return "optim" in _last_name(node).lower()


def _receivers_of_zero_grad(module: SourceModule) -> frozenset[str]:
    """Return the names, in lower case, on which a file calls `zero_grad`."""
    return _receivers_of(module, "zero_grad")


@lru_cache(maxsize=64)
def _receivers_of(module: SourceModule, method: str) -> frozenset[str]:
    """Return the names, in lower case, on which a file calls `method`."""
    return frozenset(
        _last_name(node.value).lower()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr == method
    )


@lru_cache(maxsize=64)
def _taken_apart(module: SourceModule) -> frozenset[ast.expr]:
    """Return the values of which a file takes several parts: `state, reward = world.step(action)`."""
    apart = [node.value for node in module.nodes if isinstance(node, ast.Subscript)]
    for node in module.nodes:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Tuple | ast.List) for target in node.targets
        ):
            apart.append(node.value)
    return frozenset(value for value in apart if isinstance(value, ast.Call))


def _is_optimizer(
    call: ast.Call,
    receiver: ast.expr,
    scope: Scope,
    functions: list[Function],
    evaluator: Evaluator,
) -> bool:
    """Whether `receiver.step(…)` is an optimizer step: by the receiver's origin, otherwise by its name."""
    values = evaluator.values(receiver, scope)
    kinds = {is_optimizer_value(value, evaluator) for value in values} - {None}
    if len(kinds) == 1:
        return True in kinds
    if functions or len(call.args) > 2:
        return False  # a method of the project is analyzed itself; env.step(action, …)
    if any(
        isinstance(value, External) and not OPTIMIZER_CLASS.search(value.name) for value in values
    ):
        return False  # `torch_xla.step()`: a module or an imported function
    name = _last_name(receiver).lower()
    if not name or name in ("self", "lr", "super") or _is_entered(receiver, scope, evaluator):
        return False
    if call.args and name in _receivers_of(scope.module, "reset") - _receivers_of_zero_grad(
        scope.module
    ):
        return False  # an environment: it is reset, and its step takes an action
    if call in _taken_apart(scope.module) and name not in _receivers_of_zero_grad(scope.module):
        return False  # an environment too: an optimizer returns a loss or nothing
    if NOT_OPTIMIZERS.search(name):
        return name in _receivers_of_zero_grad(scope.module)  # only optimizers and models are
    if not OPTIMIZER.fullmatch(name) and not TRAINING.search(scope.module.data):
        return False  # in a file that trains nothing: `instance.step()` of a simulation
    held = [_last_name(node).lower() for node in evaluator.iterated(receiver, scope)]
    return not held or not all(NOT_OPTIMIZERS.search(name) for name in held)


def _is_entered(receiver: ast.expr, scope: Scope, evaluator: Evaluator) -> bool:
    """Whether `receiver` is the value of a `with`, such as a profiler or a progress bar: no optimizer."""
    if not isinstance(receiver, ast.Name):
        return False
    bindings = list(evaluator.bindings_of(receiver.id, scope))
    return bool(bindings) and all(
        binding.kind == "value" and binding.value in binding.scope.top.entered
        for binding in bindings
    )


def is_optimizer_value(value: Value, evaluator: Evaluator) -> bool | None:
    """Whether `value` is an optimizer; None if that is unknown."""
    match value:
        case Result(name) | External(name):
            names = {name}
        case ClassInstance(of) | Super(of):
            classes = list(evaluator.ancestors(of))
            names = {scope.name for scope in classes} | evaluator.external_bases(of)
        case _:
            return None
    if any(
        SCHEDULER.search(name) or ENVIRONMENT.search(name) or PROFILER.match(name) for name in names
    ):
        return False
    return True if any(OPTIMIZER_CLASS.search(name) for name in names) else None


def _functions_in(call: ast.Call, scope: Scope, evaluator: Evaluator) -> list[Function]:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    values = (value for arg in arguments for value in evaluator.values(arg, scope))
    return [value for value in values if isinstance(value, Function)]


def _last_name(node: ast.expr) -> str:
    """Return the name that describes `node`: `optimizer` of `self.optimizer[0]`, also of `f(x)`, `f`."""
    while True:
        match node:
            case ast.Subscript(value=inner) | ast.Call(func=inner) | ast.Starred(value=inner):
                node = inner
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
            case _:
                return ""
