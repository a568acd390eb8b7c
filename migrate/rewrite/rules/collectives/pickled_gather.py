"""Objects that are pickled into tensors to be gathered are gathered as objects."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.values.collectives import TENSORS, called
from migrate.rewrite.edits.nodes import split_blank
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.object_collectives import GROUP
from migrate.rewrite.rules.collectives.written import beside
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, nodes, nodes_of, targets

BYTES = frozenset(
    {
        "torch.ByteStorage.from_buffer",
        "torch.ByteTensor",
        "torch.UntypedStorage.from_buffer",
        "torch.frombuffer",
    }
)
# Statements that end the function otherwise, or bind what is not its own.
LEAVING = (cst.Assert, cst.Raise, cst.Global, cst.Nonlocal, cst.Del)


class PickledGather(Rule):
    """Gather pickled objects as objects.

    **Why.** A function that many projects share pickles what it is given into a tensor of bytes, pads it to
    the longest of all replicas, and gathers the tensors. The lengths differ, and with them the graphs of the
    replicas: on a TPU they wait for each other.

    **What it does.** From `pickle.dumps` to `return` it becomes `dist.all_gather_object` over gloo, which
    returns the same.

    **Reported.** A function that does something else in between: a message, a counter, an error of its own,
    another group, another result, or what it pickles is no parameter.

    Source: torch 2.9, `all_gather_object` (measured on two replicas).
    """

    name = "pickled-gather"
    code = "XLA315"
    nodes = (cst.FunctionDef,)
    words = "dumps"
    examples = (
        rewritten(
            '''
            import pickle

            import torch
            import torch.distributed as dist


            def all_gather(data):
                """Return what all replicas have."""
                world_size = dist.get_world_size()
                if world_size == 1:
                    return [data]

                # to a tensor
                buffer = pickle.dumps(data)
                storage = torch.ByteStorage.from_buffer(buffer)
                tensor = torch.ByteTensor(storage).to("cuda")
                # the length of each
                local_size = torch.tensor([tensor.numel()], device="cuda")
                sizes = [torch.tensor([0], device="cuda") for _ in range(world_size)]
                dist.all_gather(sizes, local_size)
                sizes = [int(size.item()) for size in sizes]
                longest = max(sizes)
                tensors = [torch.empty((longest,), dtype=torch.uint8, device="cuda") for _ in sizes]
                if local_size != longest:
                    padding = torch.empty((longest - local_size,), dtype=torch.uint8, device="cuda")
                    tensor = torch.cat((tensor, padding))
                dist.all_gather(tensors, tensor)
                found = []
                for size, tensor in zip(sizes, tensors):
                    found.append(pickle.loads(tensor.cpu().numpy().tobytes()[:size]))
                return found
            ''',
            '''
            import functools

            import torch.distributed as dist


            @functools.cache
            def gloo_group():
                """Return the group that carries Python objects, which XLA does not."""
                return dist.new_group(backend="gloo")


            def all_gather(data):
                """Return what all replicas have."""
                world_size = dist.get_world_size()
                if world_size == 1:
                    return [data]

                found = [None] * dist.get_world_size()
                dist.all_gather_object(found, data, group=gloo_group())
                return found
            ''',
        ),
        left_alone(
            """
            import pickle

            import torch
            import torch.distributed as dist


            def gather(found):
                copied = pickle.loads(pickle.dumps(found))
                results = [torch.empty_like(found) for _ in range(dist.get_world_size())]
                dist.all_gather(results, found)
                return results, copied
            """
        ),
        reported(
            """
            import pickle

            import torch
            import torch.distributed as dist


            def all_gather(data, group):
                storage = torch.ByteStorage.from_buffer(pickle.dumps(data))
                tensor = torch.ByteTensor(storage).to("cuda")
                tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
                dist.all_gather(tensors, tensor, group=group)
                return [pickle.loads(tensor.cpu().numpy().tobytes()) for tensor in tensors]
            """,
            "all_gather_object",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one such function, or the finding."""
        assert isinstance(node, cst.FunctionDef)
        if not isinstance(node.body, cst.IndentedBlock) or not _pickles_to_gather(node, context):
            return
        pickled = _pickled(node, context)
        result = _result(node)
        statements = list(node.body.body)
        start = next(
            (i for i, s in enumerate(statements) if any(_named(s, ("pickle.dumps",), context))), -1
        )
        gathers = [
            c for c in context.below(node.body, cst.Call) if called(c, context) == "all_gather"
        ]
        if (
            pickled is None
            or result is None
            or not _is_plain(node, statements[start:], gathers, context)
        ):
            message = (
                "pickled objects are gathered as tensors, whose lengths differ: dist.all_gather_object, "
                "with a group over gloo"
            )
            yield from self.report(next(iter(_named(node, ("pickle.dumps",), context))), message)
            return
        new = self._written(result, pickled, gathers[-1], context)
        message = (
            "pickled objects are gathered as objects: as tensors their lengths differ by replica"
        )
        first, *others = statements[start:]

        def replace(updated: cst.BaseStatement) -> cst.FlattenSentinel[cst.BaseStatement]:
            above = split_blank(getattr(updated, "leading_lines", ()))[0]
            return cst.FlattenSentinel([new[0].with_changes(leading_lines=above), *new[1:]])

        yield self.edit(first, replace, message, consumes=[first])
        # With the comments above them, which speak of what goes.
        gone: cst.FlattenSentinel[cst.BaseStatement]
        gone = cst.FlattenSentinel([cst.SimpleStatementLine([])])
        for statement in others:
            yield self.edit(statement, lambda _: gone, message, consumes=[statement])

    def _written(
        self, result: str, pickled: str, gather: cst.Call, context: Workspace
    ) -> list[cst.SimpleStatementLine]:
        if context.portable:
            shims = context.imports.require("shims")
            size, function, group = f"{shims}.world_size()", f"{shims}.all_gather_object", ""
        else:
            definition = GROUP.format(
                functools=context.imports.require("functools"),
                new_group=beside(gather, "new_group", context),
            )
            group = f", group={context.definitions.require('gloo_group', definition)}()"
            size = f"{beside(gather, 'get_world_size', context)}()"
            function = beside(gather, "all_gather_object", context)
        lines = (
            f"{result} = [None] * {size}",
            f"{function}({result}, {pickled}{group})",
            f"return {result}",
        )
        return [cst.ensure_type(cst.parse_statement(x), cst.SimpleStatementLine) for x in lines]


def _named(root: cst.CSTNode, names: Iterable[str], context: Workspace) -> list[cst.Call]:
    wanted = frozenset(names)
    return [c for c in context.below(root, cst.Call) if context.qualified_name(c.func) in wanted]


def _pickles_to_gather(function: cst.FunctionDef, context: Workspace) -> bool:
    """Whether `function` pickles to a tensor of bytes, gathers tensors, and unpickles."""
    if not _named(function, ("pickle.dumps",), context):
        return False
    gathers = (called(call, context) == "all_gather" for call in context.below(function, cst.Call))
    return (
        bool(_named(function, BYTES, context))
        and bool(_named(function, ("pickle.loads",), context))
        and any(gathers)
    )


def _pickled(function: cst.FunctionDef, context: Workspace) -> str | None:
    """Return the parameter that is pickled."""
    dumps = _named(function, ("pickle.dumps",), context)
    value = dumps[0].args[0].value if len(dumps) == 1 and len(dumps[0].args) == 1 else None
    names = {parameter.name.value for parameter in function.params.params}
    return value.value if isinstance(value, cst.Name) and value.value in names else None


def _result(function: cst.FunctionDef) -> str | None:
    """Return the name of the list that is returned at the end, to which each object is appended."""
    last = function.body.body[-1]
    line = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    value = line.value if isinstance(line, cst.Return) else None
    if not isinstance(value, cst.Name):
        return None
    for call in nodes_of(function.body, cst.Call):
        if code(call.func) == f"{value.value}.append" and "loads" in code(call):
            return value.value
    return None


def _is_plain(
    function: cst.FunctionDef,
    statements: list[cst.BaseStatement],
    gathers: list[cst.Call],
    context: Workspace,
) -> bool:
    """Whether the statements do nothing else, and gather from all replicas."""
    returns = sum(len(list(nodes_of(statement, cst.Return))) for statement in statements)
    bound = [bind(call, TENSORS["all_gather"]) for call in gathers]
    whole = all(
        arguments is not None and arguments.keys() == {"tensor_list", "tensor"}
        for arguments in bound
    )
    bound_names = {name.value for name in targets(function) if isinstance(name, cst.Name)}
    seen = any(_is_seen(statement, bound_names, context) for statement in statements)
    return returns == 1 and whole and not seen


def _is_seen(statement: cst.BaseStatement, bound_names: set[str], context: Workspace) -> bool:
    """Whether others see what `statement` does: a message, a counter, an error.

    Args:
        statement: a statement that goes.
        bound_names: variables of the function.
        context: the script.
    """
    if any(isinstance(node, LEAVING) for node in nodes(statement)):
        return True
    if any(code(call.func) == "print" for call in context.below(statement, cst.Call)):
        return True
    if any(not _is_part(target, bound_names) for target in targets(statement)):
        return True
    for line in context.below(statement, cst.Expr):
        call = line.value
        if isinstance(call, cst.BaseString):
            continue
        if not isinstance(call, cst.Call):
            return True
        on_object = isinstance(call.func, cst.Attribute) and _is_part(call.func.value, bound_names)
        if not on_object and called(call, context) != "all_gather":
            return True
    return False


def _is_part(target: cst.BaseExpression, names: set[str]) -> bool:
    """Whether `target` is a variable of `names`, or an entry of it."""
    while isinstance(target, cst.Subscript):
        target = target.value
    return isinstance(target, cst.Name) and target.value in names
