"""Inputs that DistributedDataParallel moved to the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.reading.steps.loops import batch_names
from migrate.reading.values.devices import moves
from migrate.reading.values.host import is_on_the_cpu, items_put
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import base_name, code, nodes_of, string_value

DEPTH = 3  # so many names and dicts are followed


class DdpInputs(Rule):
    """Move the inputs that DistributedDataParallel moved to the GPU itself.

    **What it does.** With `device_ids` DDP moves the inputs of the model to the GPU. It has none on XLA, and
    a tensor of the CPU stops the model (`Expected XLA tensor`). A tensor that is made in the call of the
    model, `ddp_model(torch.randn(20, 10))`, is moved there, whatever file wraps the model. The batches of a
    loop are moved by [step](step.md) and [evaluation-loop](evaluation-loop.md).

    **Left alone.** Inputs that are made on a device; a model that is wrapped without device ids.

    **Reported.** A tensor that the same function made on the CPU and that nothing moves. A part of a batch,
    `batch["y"]`, that nothing moves where other parts are moved, and that the model is given: in its call, in
    a dict, or by a function that is given the model.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    name = "ddp-inputs"
    code = "XLA848"
    targets = BOTH
    nodes = (cst.Call,)
    of_facts = ("moved_inputs", "given_moving")
    examples = (
        rewritten(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to(rank), device_ids=[rank])
                return ddp_model(torch.randn(20, 10)).sum()
            """,
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to("xla"), gradient_as_bucket_view=True)
                return ddp_model(torch.randn(20, 10).to("xla")).sum()
            """,
        ),
        left_alone(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model):
                ddp_model = DDP(model.to("xla"), gradient_as_bucket_view=True)
                return ddp_model(torch.randn(20, 10, device="xla")).sum()
            """
        ),
        reported(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to(rank), device_ids=[rank])
                batch = torch.randn(20, 10)
                return ddp_model(batch).sum()
            """,
            "move it: batch.to('xla')",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for the arguments of one call of a wrapped model."""
        assert isinstance(node, cst.Call)
        moves_inputs = context.effects.moves_inputs(node)
        if moves_inputs or context.effects.given_moving(node):
            for value in _unmoved_parts(node, context):
                message = (
                    f"{code(value)} is a part of the batch that nothing moves: DistributedDataParallel "
                    "moved it to the GPU: if it is a tensor, move it: "
                    f"{code(value)}.to({context.vocabulary.device_said})"
                )
                yield from self.report(value, message)
        if not moves_inputs:
            return
        for arg in node.args:
            value = arg.value
            if isinstance(value, cst.Call) and is_on_the_cpu(value, context):
                device = context.vocabulary.device(value)
                said = context.vocabulary.device_said
                message = f"{code(value)} → moved to {said}, as DDP did it with device_ids"
                wrong = f"{code(value)} stays on the CPU: DDP moves inputs with device_ids only"
                yield self.edit(
                    value, lambda inputs, to=device: _moved(inputs, to), message, wrong=wrong
                )
            elif isinstance(value, cst.Name):
                _, bound = context.bound_to(value)
                if (
                    bound is not None
                    and isinstance(bound, cst.Call)
                    and is_on_the_cpu(bound, context)
                ):
                    message = (
                        f"{value.value} is on the CPU, and DDP moves no inputs to XLA: "
                        f"move it: {value.value}.to({context.vocabulary.device_said})"
                    )
                    yield from self.report(value, message)


def _moved(inputs: cst.BaseExpression, device: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(inputs, cst.Name("to")), [cst.Arg(device)])


def _unmoved_parts(call: cst.Call, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield the parts of a batch, `batch["y"]`, that `call` gets and that nothing moves.

    Where nothing of the batch is moved by its key, nothing is said: the batch is moved as a whole.
    """
    for scope, names in _batches_around(call, context):
        moved = [*moves(scope.body, context)]
        parts = [part for move in moved for part in context.below(move, cst.Subscript)]
        batch = {base_name(part) or "" for part in parts if _is_part(part, names)}
        if not batch or _moves_whole(scope, batch, call, context):
            continue
        receivers = {
            code(move.func.value) for move in moved if isinstance(move.func, cst.Attribute)
        }
        seen: set[str] = set()
        for arg in call.args:
            for part in _parts(arg.value, batch, context, DEPTH):
                text = code(part)
                if text not in seen and receivers.isdisjoint({text, *_names_of(part, scope)}):
                    seen.add(text)
                    yield part
        return


def _batches_around(
    call: cst.Call, context: Workspace
) -> Iterator[tuple[cst.For | cst.FunctionDef, set[str]]]:
    """Yield the innermost loop and the function around `call`, with the names that may hold a batch there."""
    loop = next((a for a in context.ancestors(call) if isinstance(a, cst.For)), None)
    if loop is not None:
        yield loop, {*batch_names(loop, context)}
    function = context.function_around(call)
    if function is not None:
        params = (*function.params.params, *function.params.kwonly_params)
        yield function, {param.name.value for param in params}


def _moves_whole(
    scope: cst.For | cst.FunctionDef, batch: set[str], call: cst.Call, context: Workspace
) -> bool:
    """Whether `scope` rebinds the batch, writes into it, or gives it to a move before `call`."""
    for target in nodes_of(scope.body, cst.AssignTarget):
        if base_name(target.target) in batch:
            return True
    here = context.place(call)
    return any(
        context.effects.moves(other)
        and any(code(arg.value) in batch for arg in other.args)
        and context.place(other) < here
        for other in context.below(scope.body, cst.Call)
    )


def _is_part(value: cst.BaseExpression, batch: set[str]) -> bool:
    """Whether `value` is an item of a batch by its key: `batch["y"]`."""
    if not isinstance(value, cst.Subscript) or not isinstance(value.value, cst.Name):
        return False
    index = value.slice[0].slice
    by_key = isinstance(index, cst.Index) and string_value(index.value) is not None
    return by_key and base_name(value) in batch


def _parts(
    value: cst.BaseExpression, batch: set[str], context: Workspace, depth: int
) -> Iterator[cst.BaseExpression]:
    """Yield the parts of a batch that `value` is, or holds in a dict, a list or a tuple."""
    if _is_part(value, batch):
        yield value
    elif isinstance(value, cst.IfExp):
        yield from _parts(value.body, batch, context, depth)
        yield from _parts(value.orelse, batch, context, depth)
    elif isinstance(value, cst.Dict | cst.List | cst.Tuple):
        for element in value.elements:
            yield from _parts(element.value, batch, context, depth)
    elif isinstance(value, cst.Call) and code(value.func) == "dict":
        for arg in value.args:
            yield from _parts(arg.value, batch, context, depth)
    elif isinstance(value, cst.Name) and depth:
        values = [v for v in context.bound_values(value) if isinstance(v, cst.BaseExpression)]
        again = any(n.value == value.value for v in values for n in context.below(v, cst.Name))
        if values and not again:  # `kwargs = {k: v.to(device) for k, v in kwargs.items()}`
            for bound in values:
                yield from _parts(bound, batch, context, depth - 1)
            function = context.function_around(value) or context.module
            for item in items_put(value.value, function):  # `kwargs["y"] = batch["y"]`
                yield from _parts(item, batch, context, depth - 1)


def _names_of(part: cst.BaseExpression, scope: cst.For | cst.FunctionDef) -> Iterator[str]:
    """Yield the names that a part of the batch is bound to."""
    for assign in nodes_of(scope.body, cst.Assign):
        if code(assign.value) == code(part):
            yield from (code(target.target) for target in assign.targets)
