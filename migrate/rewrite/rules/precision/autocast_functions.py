"""Rewrite what belongs to autocast regions: custom functions and queries about the region."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.reading.values.region_types import HALF
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, string_value

DECORATORS = {
    f"torch.cuda.amp.{module}custom_{way}": f"custom_{way}"
    for module in ("", "autocast_mode.")
    for way in ("fwd", "bwd")
}
QUESTIONS = {
    "torch.is_autocast_enabled": "is_autocast_enabled",
    "torch.get_autocast_gpu_dtype": "get_autocast_dtype",
}
# The same, told which device: `'cuda'` becomes `'xla'`.
OF_A_DEVICE = frozenset(
    {
        "torch.amp.custom_fwd",
        "torch.amp.custom_bwd",
        "torch.amp.autocast_mode.custom_fwd",
        "torch.amp.autocast_mode.custom_bwd",
        "torch.get_autocast_dtype",
        "torch.is_autocast_enabled",
        "torch.set_autocast_dtype",
        "torch.set_autocast_enabled",
    }
)
# Without a device they switch CUDA's autocast; the name that takes a device.
SWITCHES = {
    "torch.set_autocast_enabled": "set_autocast_enabled",
    "torch.set_autocast_gpu_dtype": "set_autocast_dtype",
}
TYPE_SETTERS = frozenset({"torch.set_autocast_dtype", "torch.set_autocast_gpu_dtype"})


class AutocastFunctions(Rule):
    """Custom functions and questions follow the autocast region of XLA.

    **What it does.** `custom_fwd` and `custom_bwd` of `torch.cuda.amp` become those of `torch.amp` for
    XLA: the others look at CUDA's region, which is never entered. For the same reason
    `torch.is_autocast_enabled()` and `torch.get_autocast_gpu_dtype()` ask for XLA, and what names
    `'cuda'` there names `'xla'`. `torch.set_autocast_enabled(…)` and `torch.set_autocast_gpu_dtype(…)` switch
    XLA's autocast, to bfloat16 where they say float16.

    **Reported.** The decorators called as functions, and a question that is kept in a variable or passed on.

    Source: torch 2.9 on torch_xla 2.9 (measured: `cast_inputs` acts, the backward runs).
    """

    name = "autocast-functions"
    code = "XLA844"
    targets = BOTH
    nodes = (cst.Call, cst.Decorator, cst.Attribute, cst.Name)
    of_names = True
    words = "autocast|custom_fwd|custom_bwd"
    examples = (
        rewritten(
            """
            import torch


            class Scale(torch.autograd.Function):
                @staticmethod
                @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
                def forward(ctx, x):
                    return x * 2

                @staticmethod
                @torch.cuda.amp.custom_bwd
                def backward(ctx, gradient):
                    return gradient * 2


            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x):
                return x.to(torch.get_autocast_dtype("cuda"))


            print(torch.is_autocast_enabled())
            """,
            """
            import torch


            class Scale(torch.autograd.Function):
                @staticmethod
                @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
                def forward(ctx, x):
                    return x * 2

                @staticmethod
                @torch.amp.custom_bwd(device_type="xla")
                def backward(ctx, gradient):
                    return gradient * 2


            @torch.amp.custom_fwd(device_type="xla")
            def forward(ctx, x):
                return x.to(torch.get_autocast_dtype("xla"))


            print(torch.is_autocast_enabled("xla"))
            """,
        ),
        left_alone(
            """
            import torch

            print(torch.is_autocast_enabled('cpu'))
            """
        ),
        rewritten(
            """
            import torch

            before = torch.is_autocast_enabled()
            torch.set_autocast_enabled(True)
            torch.set_autocast_gpu_dtype(torch.float16)
            torch.set_autocast_dtype("cuda", torch.half)
            torch.set_autocast_enabled("cuda", before)
            """,
            """
            import torch

            before = torch.is_autocast_enabled("xla")
            torch.set_autocast_enabled("xla", True)
            torch.set_autocast_dtype("xla", torch.bfloat16)
            torch.set_autocast_dtype("xla", torch.bfloat16)
            torch.set_autocast_enabled("xla", before)
            """,
        ),
        reported(
            """
            import torch

            is_on = torch.is_autocast_enabled
            """,
            "asks about CUDA's region",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one decorator or question."""
        if isinstance(node, cst.Decorator):
            expression = node.decorator
            function = expression.func if isinstance(expression, cst.Call) else expression
            name = DECORATORS.get(context.qualified_name(function) or "")
            if name is not None:
                yield self._decorator(expression, name, context)
            return
        if isinstance(node, cst.Name | cst.Attribute):
            yield from self._kept(node, context)
            return
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func) or ""
        device = keyword(node, "device_type") or (node.args[0] if node.args else None)
        if name in TYPE_SETTERS:
            yield from self._type(node, context)
        if name in OF_A_DEVICE and device is not None and string_value(device.value) == "cuda":
            xla = context.vocabulary.device_type(like=device.value)
            message = f"{code(node)} → for XLA"
            yield self.edit(device.value, lambda _: xla, message, consumes=[device.value])
        elif name in QUESTIONS and not node.args:
            yield self._question(node, QUESTIONS[name], context)
        elif name in SWITCHES and len(node.args) == 1:
            yield self._switch(node, SWITCHES[name], context)
        elif name in DECORATORS and not isinstance(context.parent(node), cst.Decorator):
            message = f"{code(node)}: torch.amp.{DECORATORS[name]}(device_type='xla') on XLA"
            yield from self.report(node, message)

    def _decorator(self, expression: cst.BaseExpression, name: str, context: Workspace) -> Edit:
        function = cst.parse_expression(f"{context.imports.require('torch')}.amp.{name}")
        device = keyword_arg("device_type", context.vocabulary.device_type())

        def replace(updated: cst.BaseExpression) -> cst.BaseExpression:
            if isinstance(updated, cst.Call):
                return with_args(updated, [device, *updated.args]).with_changes(func=function)
            return cst.Call(function, [device])

        gone = expression.func if isinstance(expression, cst.Call) else expression
        return self.edit(expression, replace, f"{name} for XLA", consumes=[gone])

    def _question(self, call: cst.Call, name: str, context: Workspace) -> Edit:
        function = cst.parse_expression(f"{context.imports.require('torch')}.{name}")
        xla = cst.Arg(context.vocabulary.device_type())

        def replace(updated: cst.Call) -> cst.Call:
            return updated.with_changes(func=function, args=[xla])

        return self.edit(call, replace, f"{code(call)} → for XLA", consumes=[call.func])

    def _switch(self, call: cst.Call, name: str, context: Workspace) -> Edit:
        """Return the edit of a call that switches CUDA's autocast: the same for XLA."""
        function = cst.parse_expression(f"{context.imports.require('torch')}.{name}")
        xla = cst.Arg(context.vocabulary.device_type())

        def replace(updated: cst.Call) -> cst.Call:
            value = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
            return with_args(updated, [xla, value]).with_changes(func=function)

        return self.edit(call, replace, f"{code(call)} → for XLA", consumes=[call.func])

    def _type(self, call: cst.Call, context: Workspace) -> Iterable[Edit]:
        """Yield the edit of a float16 that a call sets as the type of regions: XLA computes in bfloat16."""
        arg = keyword(call, "dtype") or (call.args[-1] if call.args else None)
        if arg is None or context.qualified_name(arg.value) not in HALF:
            return
        if context.portable:
            shims = context.imports.require("shims")
            expression = cst.parse_expression(f"{shims}.autocast_dtype({code(arg.value)})")
            gone: list[cst.CSTNode] = []
        else:
            expression = cst.parse_expression(f"{context.imports.require('torch')}.bfloat16")
            gone = [arg.value]
        message = f"{code(arg.value)} → bfloat16 on XLA: the type of autocast regions"
        yield self.edit(arg.value, lambda _: expression, message, consumes=gone)

    def _kept(self, node: cst.Name | cst.Attribute, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding at a question that is kept or passed on instead of being called."""
        above = context.parent(node)
        if not isinstance(above, cst.Assign | cst.Arg | cst.DictElement | cst.Return | cst.IfExp):
            return
        name = context.qualified_name(node)
        if name in QUESTIONS:
            message = (
                f"{code(node)} without a device asks about CUDA's region, which is never entered on XLA: "
                f'torch.{QUESTIONS[name]}("xla")'
            )
            yield from self.report(node, message)
