"""Loops that run a model turn after turn without gradients, and never end the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import (
    CALLED_MODEL,
    HOST_ROOTS,
    NO_GRADIENTS,
    NUMBERS,
    OF_HOST,
    READ_METHODS,
    RUNS_PENDING,
    STEPS,
    TO_CPU,
    WAITS,
)
from migrate.model.calls.kind import LOADERS, Kind
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.names.bindings import How
from migrate.reading.steps.carried import carried
from migrate.reading.steps.effects import Effect
from migrate.reading.steps.in_step import When, is_step
from migrate.reading.steps.loops import Loop
from migrate.reading.values.device_values import DeviceValues
from migrate.reading.values.parameters import goes_over_weights, is_in_optimizer
from migrate.reading.values.values import is_forward
from migrate.syntax.tree import (
    code,
    container,
    is_attribute_of_self,
    last_part,
    nodes_of,
    string_value,
    targets,
)
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.facts import Facts
    from migrate.reading.script import Script

Comprehension = cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp
_DEFINES = frozenset((cst.FunctionDef, cst.Lambda, cst.ClassDef))
FEW = 4  # number of turns that one graph can hold
DEEPEST = 4
AROUND = frozenset({"reversed", "tqdm", "trange", "list", "iter", "enumerate"})
ENDS = STEPS | WAITS | RUNS_PENDING


def unended_call(loop: Loop, facts: Facts) -> cst.Call | None:
    """Return the call by which `loop` runs a model in each turn of one growing graph, or None."""
    if _turns(loop, facts) <= FEW or not _stands_alone(loop, facts):
        return None
    call = next(models_in(loop.body, facts), None)
    if call is None or not without_gradients(call, facts) or not _accelerated(loop, facts):
        return None
    # The rewrite gives a loop over batches a step, if its forward is in plain sight.
    steady = facts.uses_xla or facts.context.place(call) in _sampling(facts) or _collects(loop)
    if isinstance(loop, cst.For) and facts.values.kind(loop.iter) in LOADERS and not steady:
        return None
    if not _counts(loop) and not carried(loop) and not steady:
        return None
    return None if ends_graph(loop, facts) else call


def unended_element(comprehension: Comprehension, facts: Facts) -> cst.Call | None:
    """Return the call by which `comprehension` runs a model for each element in one growing graph, or None.

    It gets no step, as a loop over batches does: `[model(x.cuda()) for x in loader]`.
    """
    context = facts.context
    over = comprehension.for_in
    function = context.function_around(comprehension)
    if _length(over.iter, facts) <= FEW or facts.steps.when(comprehension) is not When.ELSEWHERE:
        return None
    if function is not None and (
        is_forward(function, context)
        or context.position(function.name).line in context.calls.feeding
    ):
        return None
    if context.effects.of(comprehension) != Effect.NONE or is_in_optimizer(comprehension, context):
        return None
    elements = {name.value for name in facts.below(over.target, cst.Name)}
    iterated = {id(call) for call in facts.below(over, cst.Call)}
    calls = (c for c in models_in(comprehension, facts) if id(c) not in iterated)
    call = next((c for c in calls if code(c.func).partition(".")[0] not in elements), None)
    if call is None or not _is_gradient_free_call(call, facts) or not is_on_accelerator(facts):
        return None
    inside = list(nodes_of(comprehension, cst.Call))
    ends = any(_ends_by(c, facts) or code(c.func) in NUMBERS for c in inside)
    return None if ends else call


def is_sampling(loop: Loop, facts: Facts) -> bool:
    """Whether `loop` runs a model without gradients in each turn, on what the turn before computed."""
    if _turns(loop, facts) <= FEW or not _stands_alone(loop, facts):
        return False
    carries = carried(loop)
    if isinstance(loop, cst.For):  # a turn starts with these anew
        carries -= {name.value for name in facts.below(loop.target, cst.Name)}
    if not carries or not _accelerated(loop, facts):
        return False
    return any(
        without_gradients(call, facts)
        for call in models_in(loop.body, facts)
        if any(
            name.value in carries for arg in call.args for name in facts.below(arg.value, cst.Name)
        )
    )


def computed_in(loop: Loop, facts: Facts) -> DeviceValues:
    """Return the values that a turn of `loop` computes, as far as names show them."""
    return DeviceValues(loop.body, _bound(loop, facts), facts.context)


def _turns(loop: Loop, facts: Facts) -> float:
    """Return the number of turns of `loop`, as far as the script shows it; otherwise infinity."""
    return _length(loop.iter, facts) if isinstance(loop, cst.For) else float("inf")


def _length(over: cst.BaseExpression, facts: Facts) -> float:
    if isinstance(over, cst.Tuple | cst.List):
        return len(over.elements)
    if isinstance(over, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(over)]
        if len(values) == 1 and isinstance(values[0], cst.Tuple | cst.List):
            return len(values[0].elements)
    if not isinstance(over, cst.Call) or not over.args:
        return float("inf")
    name = code(over.func).rpartition(".")[2]
    if name in ("range", "trange"):
        bounds = [_number(arg.value, facts) for arg in over.args if arg.keyword is None]
        if not bounds or None in bounds:
            return float("inf")
        return len(range(*(bound for bound in bounds if bound is not None)))
    if name in AROUND:
        return _length(over.args[0].value, facts)
    if name == "zip":
        return min(_length(arg.value, facts) for arg in over.args)
    return float("inf")


def _number(node: cst.BaseExpression, facts: Facts) -> int | None:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = _number(node.expression, facts)
        return None if inner is None else -inner
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(node)]
        if values and all(isinstance(value, cst.Integer) for value in values):
            return max(value.evaluated_value for value in values if isinstance(value, cst.Integer))
    return None


def _stands_alone(loop: Loop, facts: Facts) -> bool:
    """Whether `loop` is no part of a training step or a forward, and not around steps that train."""
    effects = facts.context.effects
    inner = list(nodes_of(loop, cst.For | cst.While))  # type: ignore[arg-type]
    if (
        any(effects.is_step_loop(inner_loop) for inner_loop in inner)
        or effects.of(loop.body) != Effect.NONE
    ):
        return False
    if any(effects.has_steps(call) for call in facts.below(loop.body, cst.Call)):
        return False
    if effects.on_cpu(loop) == 0 or facts.steps.trains(loop):
        return False
    function = facts.context.function_around(loop)
    if (
        function is not None
        and facts.context.position(function.name).line in facts.context.calls.feeding
    ):
        return False
    if goes_over_weights(loop, facts.context):
        return False
    if is_in_optimizer(loop, facts.context):
        return False
    free = function is not None and _is_decorated(function, facts)
    return free or not is_forward(function, facts.context)


def models_in(
    block: cst.CSTNode, facts: Facts, depth: int = 0, seen: Sequence[int] = ()
) -> Iterator[cst.Call]:
    """Yield the calls in `block` that run a model and keep its output, without inner loops."""
    parameters = _parameters(block, facts)
    for call in _own_calls(block, facts):
        if not call.args or _is_layer(call, facts):
            continue
        direct = _is_model(call, facts) or (
            (code(call.func) in parameters and _is_given(call, block, facts))
            or _takes_batch(call, block, facts)
        )
        kept = direct and not isinstance(facts.context.parent(call), cst.Expr)
        if kept or facts.context.place(call) in _sampling(facts):
            yield call
        elif depth < DEEPEST:
            for function in facts.context.called(call):
                if id(function) not in seen and not is_forward(function, facts.context):
                    inner = models_in(function.body, facts, depth + 1, (*seen, id(function)))
                    if next(inner, None) is not None:
                        yield call
                        break


def _own_calls(node: cst.CSTNode, facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls below `node`, without those of functions defined there and of longer inner loops."""
    for child in children(node):
        if type(child) in _DEFINES:
            continue
        if (type(child) is cst.For or type(child) is cst.While) and _turns(child, facts) > FEW:
            continue
        if type(child) is cst.Call:
            yield child
        yield from _own_calls(child, facts)


def _is_model(call: cst.Call, facts: Facts) -> bool:
    if facts.context.place(call) in facts.context.calls.of_libraries:
        return False
    named = code(call.func).removesuffix(".forward").rpartition(".")[2]
    if "criterion" in named or "loss" in named:
        return False
    by_item = isinstance(call.func, cst.Subscript) and facts.values.calls_model(call)
    if by_item or facts.values.computes_by_method(call):
        return True
    if facts.values.kind(call.func) is Kind.MODEL:
        return True
    if CALLED_MODEL.fullmatch(named):
        return not facts.values.only_asks(call)
    if facts.context.place(call.func) in facts.context.calls.models:
        return True
    around = facts.context.class_around(call)
    methods = around.body.body if around is not None else ()
    forwards = any(isinstance(m, cst.FunctionDef) and is_forward(m, facts.context) for m in methods)
    return forwards and code(call.func) in ("self", "self.forward")


def _parameters(block: cst.CSTNode, facts: Facts) -> frozenset[str]:
    """Return the parameters without default of the function around `block`: they may be models."""
    function = facts.context.function_around(block)
    if function is None or not isinstance(facts.context.parent(block), cst.For | cst.While):
        return frozenset()
    params = (
        *function.params.posonly_params,
        *function.params.params,
        *function.params.kwonly_params,
    )
    return frozenset(parameter.name.value for parameter in params if parameter.default is None)


def _is_given(call: cst.Call, block: cst.CSTNode, facts: Facts) -> bool:
    """Whether `call` gets a value that an earlier turn of the loop with the body `block` computed."""
    loop = facts.context.parent(block)
    if not isinstance(loop, cst.For | cst.While):
        return False
    names = {name.value for arg in call.args for name in facts.below(arg.value, cst.Name)}
    return not names.isdisjoint(carried(loop))


def is_unknown_callee(call: cst.Call, context: Script) -> bool:
    """Whether the callee is a parameter or an attribute of `self` of which nothing is known."""
    func = container(call.func)
    if isinstance(func, cst.Name):
        function = context.function_around(call)
        parameters = function.params if function is not None else cst.Parameters()
        every = (*parameters.posonly_params, *parameters.params, *parameters.kwonly_params)
        is_open = func.value in {parameter.name.value for parameter in every}
    else:
        is_open = is_attribute_of_self(func)
    if not is_open or context.run_by(call) or context.place(call) in context.calls.of_libraries:
        return False
    return context.values.kind(call.func) is Kind.UNKNOWN


def _takes_batch(call: cst.Call, block: cst.CSTNode, facts: Facts) -> bool:
    """Whether an unknown callee is called with the loop's elements.

    The callee is a parameter, or an attribute of `self` that nothing sets. Without gradients it may be a
    model or a host function; its name does not decide which.
    """
    loop = facts.context.parent(block)
    func = call.func
    if not isinstance(loop, cst.For) or not isinstance(func, cst.Name | cst.Attribute):
        return False
    if isinstance(func, cst.Name):
        is_open = func.value in _parameters(block, facts)
    else:
        is_open = not facts.values.given_to(func)
    if not is_open or not is_unknown_callee(call, facts.context):
        return False
    if OF_HOST.search(code(func).rpartition(".")[2]):
        return False
    over = {name.value for name in facts.below(loop.target, cst.Name)}
    used = {name.value for arg in call.args for name in facts.below(arg.value, cst.Name)}
    return not over.isdisjoint(used) and not _counts(loop)


def _collects(loop: Loop) -> bool:
    """Whether `loop` keeps the values that its turns compute: `outputs.append(y)`."""
    bound = {name.value for name in nodes_of(loop, cst.Name) if _is_bound(name, loop)}
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("append", "extend")
        and code(call.func.value) not in bound
        and any(isinstance(node, cst.Name | cst.Call) for arg in call.args for node in [arg.value])
        for call in nodes_of(loop.body, cst.Call)
    )


def _is_bound(name: cst.Name, loop: Loop) -> bool:
    return any(
        target is name for assign in nodes_of(loop.body, cst.Assign) for target in targets(assign)
    )


def _is_layer(call: cst.Call, facts: Facts) -> bool:
    """Whether the callee is a part of a model that the loop iterates over: `self.blocks[i](x)`."""
    func = call.func
    if isinstance(func, cst.Subscript):
        return not _is_chosen(func)
    root = code(func).partition(".")[0]
    for above in facts.context.ancestors(call):
        if isinstance(above, cst.For):
            if root in {name.value for name in facts.below(above.target, cst.Name)}:
                return True
        elif isinstance(above, cst.FunctionDef):
            return False
    return False


def _is_chosen(item: cst.Subscript) -> bool:
    """Whether an element is chosen by name or in rotation: `models["denoiser"]`, `nets[i % 2]`."""
    index = item.slice[0].slice
    chosen = (cst.BaseString, cst.BaseNumber, cst.BinaryOperation, cst.IfExp, cst.Attribute)
    return isinstance(index, cst.Index) and isinstance(index.value, chosen)


def _sampling(facts: Facts) -> frozenset[tuple[int, int]]:
    return facts.context.calls.sampling


def _counts(loop: Loop) -> bool:
    """Whether `loop` counts its turns, or runs until a condition is met."""
    if isinstance(loop, cst.While):
        return True
    over = loop.iter
    while isinstance(over, cst.Call) and over.args:
        name = code(over.func).rpartition(".")[2]
        if name in ("range", "trange"):
            return True
        if name not in AROUND:
            return False
        over = over.args[0].value
    return False


def without_gradients(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether gradients are off at `node`, the call of a model or other code of `loop`."""
    return _is_gradient_free_call(node, facts)


def _is_gradient_free_call(node: cst.CSTNode, facts: Facts) -> bool:
    context = facts.context
    if isinstance(node, cst.Call) and context.place(node) in context.calls.evaluating:
        return True
    if is_gradient_free(node, facts):
        return True
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef) and (
            is_in_eval_mode(node, above, context)
            or any(_is_switched_off(call, facts) for call in facts.below(above.body, cst.Call))
        ):
            return True
    switches = _evaluates if context.function_around(node) is None else _is_switched_off
    module = (call for call in facts.calls if context.function_around(call) is None)
    return any(switches(call, facts) for call in module)


def is_in_eval_mode(node: cst.CSTNode, function: cst.FunctionDef, context: Script) -> bool:
    """Whether a function calls `eval()` of a model, and does not set it to train again before `node`.

    A training step that sets the model back at its end, `model.train()` … `model.eval()`, is no evaluation.
    """
    line = context.position(node).line
    trains: dict[str, bool] = {}  # whether a model trains at `node`, by its name
    for call in context.below(function.body, cst.Call):
        if not isinstance(call.func, cst.Attribute):
            continue
        model, mode = code(call.func.value), call.func.attr.value
        comes_before = context.position(call).line < line
        if mode == "eval" and not call.args and (comes_before or model not in trains):
            trains[model] = False
        elif mode == "train" and comes_before:
            trains[model] = not call.args or code(call.args[0].value) == "True"
    return False in trains.values()


def is_gradient_free(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether a `with` or a decorator around `node`, or all callers of its function, switch gradients off."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.With) and any(_is_free(item.item, facts) for item in above.items):
            return True
        if isinstance(above, cst.FunctionDef):
            line = facts.context.position(above).line
            if _is_decorated(above, facts) or line in facts.context.calls.gradient_free:
                return True
    return False


def _is_decorated(function: cst.FunctionDef, facts: Facts) -> bool:
    return any(_is_free(decorator.decorator, facts) for decorator in function.decorators)


def _is_free(node: cst.BaseExpression, facts: Facts) -> bool:
    if isinstance(node, cst.Call) and _is_switched_off(node, facts):
        return True
    return facts.context.names_any([node], NO_GRADIENTS)


def _evaluates(call: cst.Call, facts: Facts) -> bool:
    is_eval = isinstance(call.func, cst.Attribute) and call.func.attr.value == "eval"
    return (is_eval and not call.args) or _is_switched_off(call, facts)


def _is_switched_off(call: cst.Call, facts: Facts) -> bool:
    if facts.context.qualified_name(call.func) != "torch.set_grad_enabled" or not call.args:
        return False
    return code(call.args[0].value) == "False"


def _accelerated(loop: Loop, facts: Facts) -> bool:
    """Whether the project uses an accelerator where `loop` runs."""
    context = facts.context
    if is_on_accelerator(facts):
        return True
    sampled = context.calls.sampled.get(context.position(loop).line, False)
    return context.effects.on_accelerator(loop) is not False or sampled is not False


def is_on_accelerator(facts: Facts) -> bool:
    """Whether the script uses an accelerator."""
    context = facts.context
    if context.moves_to_accelerator or facts.uses_xla or context.calls.run_on_accelerator:
        return True
    return "shims" in facts.names.roots or any(
        (context.qualified_name(a) or "").startswith("torch.cuda.")
        for a in context.all_of(cst.Attribute)
    )


def ends_graph(loop: Loop, facts: Facts) -> bool:
    """Whether a turn of `loop` ends the graph, or reads a value it has computed."""
    context = facts.context
    if isinstance(loop, cst.For) and facts.values.kind(loop.iter) is Kind.DEVICE_LOADER:
        return True
    if any(is_step(block, context) for block in facts.below(loop.body, cst.With)):
        return True
    values = computed_in(loop, facts)
    if next(DeviceReads(values, context).inside(loop.body), None) is not None:
        return True
    if isinstance(loop, cst.While) and values.mentions(loop.test):
        return True
    return any(_ends_by(call, facts) for call in facts.below(loop, cst.Call))


def _bound(loop: Loop, facts: Facts) -> list[str]:
    """Return the names that a turn of `loop` computes from a model's output, as far as names show it.

    What NumPy and other libraries of the host give is no such output.
    """
    return [
        name.value
        for assign in facts.below(loop.body, cst.Assign)
        if isinstance(assign.value, cst.Call)
        and (facts.names.of(assign.value.func) or "").partition(".")[0] not in HOST_ROOTS
        for target in targets(assign)
        for name in facts.below(target, cst.Name)
    ]


def _ends_by(call: cst.Call, facts: Facts, depth: int = 0) -> bool:
    context = facts.context
    if context.qualified_name(call.func) in ENDS or context.effects.reads(call):
        return True
    if context.place(call) in context.calls.host_drawing:
        return True  # the draw runs on the CPU, from values that the turn has computed
    if (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in READ_METHODS
        and not call.args
    ):
        return True
    if TO_CPU.fullmatch(last_part(call.func)) and call.args:
        return True
    if any(string_value(arg.value) == "cpu" for arg in call.args if arg.keyword is None):
        return bool(facts.context.run_by(call) or context.called(call)) and len(call.args) > 1
    return depth < DEEPEST and any(
        _ends_by(inner, facts, depth + 1)
        for function in context.called(call)
        for inner in context.below(function.body, cst.Call)
        if not _is_of_held(inner, facts)
    )


def _is_of_held(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs for each object that an attribute of `self` holds: there may be none."""
    receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
    assignments = facts.bindings.given(receiver) if isinstance(receiver, cst.Name) else ()
    return any(
        assignment.how in (How.ELEMENT, How.COUNTER)
        and assignment.value is not None
        and _is_held(assignment.value)
        for assignment in assignments
    )


def _is_held(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Call) and last_part(value.func) in ("items", "values"):
        value = value.func.value if isinstance(value.func, cst.Attribute) else value
    return is_attribute_of_self(value)
