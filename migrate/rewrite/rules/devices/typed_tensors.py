"""Tensors of CUDA types become tensors with a dtype and a device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_cuda import TYPES
from migrate.rewrite.edits.nodes import keyword_arg
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, string_value

# In-place methods that fill a tensor: what is filled was made from a size.
FILLS = frozenset({"fill_", "normal_", "ones_", "random_", "uniform_", "zero_"})


class TypedTensors(Rule):
    """Make tensors of CUDA types with `torch.tensor`, `torch.empty` and `.to`.

    **What it does.** `torch.cuda.IntTensor([0])` becomes
    `torch.tensor([0], dtype=torch.int32, device='xla')`; sizes, as in `torch.cuda.FloatTensor(3, 4)`,
    become `torch.empty`. Where the argument may be either, the type of the CPU decides as the type of
    CUDA did: `torch.FloatTensor(x).to('xla')`. `x.type(torch.cuda.LongTensor)` becomes
    `x.to('xla', torch.int64)`, and `set_default_tensor_type(torch.cuda.FloatTensor)` becomes
    `set_default_device('xla')`.

    **Reported.** A type that is kept or compared, as in `Tensor = torch.cuda.FloatTensor`.

    Source: torch_xla 2.9 (measured: torch.cuda.FloatTensor raises).
    """

    name = "typed-tensors"
    names_device = True
    code = "XLA833"
    targets = BOTH
    on_torch_tpu = "The device is `'tpu'`."
    beside_frameworks = True
    nodes = (cst.Call, cst.Attribute, cst.Name)
    of_names = True
    words = "Tensor"
    examples = (
        rewritten(
            """
            import torch

            flag = torch.cuda.IntTensor([0])
            weights = torch.cuda.FloatTensor(4 * 4, 2).fill_(1.0)


            def make(values, n, x):
                some = torch.cuda.ByteTensor(n).zero_()
                same = torch.cuda.HalfTensor(x.shape)
                return torch.cuda.FloatTensor(values), x.type(torch.cuda.LongTensor), some, same
            """,
            """
            import torch
            import torch_xla

            flag = torch.tensor([0], dtype=torch.int32, device="xla")
            weights = torch.empty(4 * 4, 2, dtype=torch.float32, device="xla").fill_(1.0)


            def make(values, n, x):
                some = torch.empty(n, dtype=torch.uint8, device="xla").zero_()
                same = torch.empty(x.shape, dtype=torch.float16, device="xla")
                return torch.FloatTensor(values).to("xla"), x.to("xla", torch.int64), some, same
            """,
        ),
        rewritten(
            """
            import torch

            torch.set_default_tensor_type('torch.cuda.FloatTensor')
            x = torch.ones(3).type('torch.cuda.HalfTensor')
            """,
            """
            import torch
            import torch_xla

            torch.set_default_device('xla')
            x = torch.ones(3).to('xla', torch.float16)
            """,
        ),
        left_alone(
            """
            import torch

            x = torch.FloatTensor([1.0]).type(torch.LongTensor)
            """
        ),
        reported(
            """
            import torch

            Tensor = torch.cuda.FloatTensor
            """,
            "dtype=torch.float32, device='xla'",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call that makes or converts a tensor, or the finding on a type."""
        if isinstance(node, cst.Call):
            yield from self._call(node, context)
            return
        above = context.parent(node)
        if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
            return
        dtype = TYPES.get(context.qualified_name(node) or "")
        if dtype is None or (isinstance(above, cst.Call) and above.func is node):
            return
        if isinstance(above, cst.Arg):
            call = context.parent(above)
            if isinstance(call, cst.Call) and self._converts(call, context):
                return
        message = (
            f"{code(node)} does not exist on XLA: make it with dtype=torch.{dtype}, "
            f"device={context.vocabulary.device_said}"
        )
        yield from self.report(node, message)

    def _call(self, node: cst.Call, context: Workspace) -> Iterable[Edit]:
        dtype = TYPES.get(context.qualified_name(node.func) or "")
        if dtype is not None:
            yield self._made(node, dtype, context)
        elif self._converts(node, context):
            value = node.args[0].value
            dtype = self._dtype(value, context)
            torch = context.imports.require("torch")
            xla = context.vocabulary.device(node, like=value)
            if context.qualified_name(node.func) is None:
                to = cst.Name("to")
                args = [cst.Arg(xla), cst.Arg(cst.parse_expression(f"{torch}.{dtype}"))]
            else:
                to = cst.Name("set_default_device")
                args = [cst.Arg(xla)]
            assert isinstance(node.func, cst.Attribute)

            def replace(updated: cst.Call) -> cst.Call:
                func = cst.ensure_type(updated.func, cst.Attribute)
                return updated.with_changes(func=func.with_changes(attr=to), args=args)

            message = f"{code(value)} → {code(xla)}, {dtype}"
            yield self.edit(node, replace, message, consumes=[node.func.attr, *node.args])

    def _converts(self, call: cst.Call, context: Workspace) -> bool:
        """Whether `call` is `x.type(T)`, or `set_default_tensor_type(T)`, of a CUDA type."""
        if not isinstance(call.func, cst.Attribute) or len(call.args) != 1 or call.args[0].star:
            return False
        dtype = self._dtype(call.args[0].value, context)
        name = context.qualified_name(call.func)
        if name is None:
            return call.func.attr.value == "type" and dtype is not None
        return name == "torch.set_default_tensor_type" and dtype == "float32"

    def _dtype(self, value: cst.BaseExpression, context: Workspace) -> str | None:
        return TYPES.get(context.qualified_name(value) or string_value(value) or "")

    def _made(self, node: cst.Call, dtype: str, context: Workspace) -> Edit:
        torch = context.imports.require("torch")
        xla = context.vocabulary.device(node)
        said = context.vocabulary.device_said
        how = _how(node, context)
        if how is None:
            name = (context.qualified_name(node.func) or "").rsplit(".", 1)[-1]
            on_cpu = cst.parse_expression(f"{torch}.{name}")

            def moved(updated: cst.Call) -> cst.Call:
                tensor = updated.with_changes(func=on_cpu)
                return cst.Call(cst.Attribute(tensor, cst.Name("to")), [cst.Arg(xla)])

            message = f"{code(node.func)} → torch.{name}(…).to({said})"
            return self.edit(node, moved, message, consumes=[node.func])
        function = cst.parse_expression(f"{torch}.{how}")
        added = [
            keyword_arg("dtype", cst.parse_expression(f"{torch}.{dtype}")),
            keyword_arg("device", xla),
        ]

        def replace(updated: cst.Call) -> cst.Call:
            args = list(updated.args) or [cst.Arg(cst.Integer("0"))]
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return updated.with_changes(func=function, args=[*args, *added])

        message = f"{code(node.func)} → torch.{how}(…, dtype=torch.{dtype}, device={said})"
        return self.edit(node, replace, message, consumes=[node.func])


def _how(call: cst.Call, context: Workspace) -> str | None:
    """Return the function that makes the tensor: from data, from a size, or None for either."""
    if any(arg.star or arg.keyword for arg in call.args):
        return None
    if len(call.args) != 1:
        return "empty"
    value = call.args[0].value
    if isinstance(value, cst.List | cst.ListComp | cst.Tuple):
        return "tensor"
    if _is_size(value):
        return "empty"
    above = context.parent(call)
    filled = isinstance(above, cst.Attribute) and above.attr.value in FILLS
    return "empty" if filled else None


def _is_size(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.BinaryOperation):
        return _is_size(value.left) and _is_size(value.right)
    if isinstance(value, cst.Call):
        return isinstance(value.func, cst.Attribute) and value.func.attr.value == "size"
    if isinstance(value, cst.Attribute):
        return value.attr.value == "shape"
    return isinstance(value, cst.Integer)
