"""Mixed precision: CUDA's float16 regions become bfloat16 regions of XLA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.reading.catalogue import torch_cuda
from migrate.reading.catalogue.entry import names
from migrate.reading.catalogue.torch_other import TYPED_AUTOCAST
from migrate.reading.tree.tree import bind, code, nodes, nodes_of, string_value
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.rules.devices.gpu_conditions import ASKED
from migrate.rewrite.workspace import Workspace

CUDA_AUTOCAST = names(*torch_cuda.AUTOCAST) | {"torch_xla.amp.autocast"}
AUTOCAST = names(*TYPED_AUTOCAST)
CUDA_PARAMETERS = ("enabled", "dtype", "cache_enabled")
XLA_PARAMETERS = ("device", "enabled", "dtype", "cache_enabled")  # torch_xla.amp.autocast
PARAMETERS = ("device_type", "dtype", "enabled", "cache_enabled")
HALF = frozenset({"torch.float16", "torch.half"})


class Autocast(Rule):
    """Autocast regions run in bfloat16 on XLA.

    **What it does.** `torch.cuda.amp.autocast(…)` and `torch.autocast("cuda", …)` become
    `torch.autocast("xla", dtype=torch.bfloat16, …)`, as context managers and as decorators, `enabled`
    and `cache_enabled` kept. Left as it is, a region for CUDA runs in float32 on XLA, with no error. A
    `dtype` of float16 becomes bfloat16, also where a name or a dictionary of types leads to it: float16
    needs a gradient scaler, bfloat16 has the range of float32. In the portable style the script's type stays
    its type on CUDA: `shims.autocast(dtype=torch.float16)` is bfloat16 on XLA only.

    **Reported.** A call with `*` or `**` arguments; a `dtype` that the script does not show; an autocast
    that the script imports for other modules.

    Source: torch 2.9 and torch_xla 2.9 (measured: the type of a Linear's result in each region;
    `torch_xla.amp.autocast` raises for `'xla'` and ignores itself off the TPU).
    """

    name = "autocast"
    nodes = (cst.Call, cst.Attribute, cst.Name, cst.ImportAlias)
    of_names = True
    examples = (
        rewritten(
            """
            from torch.cuda.amp import autocast


            def train(model, x, args):
                with autocast(enabled=args.amp):  # half precision
                    return model(x)


            @autocast()
            def evaluate(model, x):
                return model(x)
            """,
            """
            import torch


            def train(model, x, args):
                with torch.autocast("xla", dtype=torch.bfloat16, enabled=args.amp):  # half precision
                    return model(x)


            @torch.autocast("xla", dtype=torch.bfloat16)
            def evaluate(model, x):
                return model(x)
            """,
        ),
        rewritten(
            """
            import torch

            kind = {'float32': torch.float32, 'float16': torch.float16}[precision]
            with torch.amp.autocast(device_type='cuda', dtype=kind):
                y = model(x)
            """,
            """
            import torch

            kind = {'float32': torch.float32, 'float16': torch.bfloat16}[precision]
            with torch.amp.autocast(device_type='xla', dtype=kind):
                y = model(x)
            """,
        ),
        rewritten(
            """
            import torch

            dtype = torch.bfloat16 if major >= 8 else torch.float16
            with torch.amp.autocast(device_type='cuda', dtype=dtype):
                y = model(x)
            """,
            """
            import torch

            dtype = torch.bfloat16
            with torch.amp.autocast(device_type='xla', dtype=dtype):
                y = model(x)
            """,
        ),
        left_alone(
            """
            import torch

            with torch.autocast('cpu', dtype=torch.bfloat16):
                y = model(x)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                y = model(x)
            """
        ),
        reported(
            """
            import torch


            def region(dtype):
                return torch.autocast('xla', dtype=dtype)
            """,
            "see that it is torch.bfloat16",
        ),
        reported(
            """
            import torch


            def region(options):
                return torch.cuda.amp.autocast(**options)
            """,
            "runs in float32",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield what becomes of one region, of one type that leads to it, or of one import."""
        if isinstance(node, cst.ImportAlias):
            yield from self._handed_on(node, context)
        elif isinstance(node, cst.Call):
            yield from self._call(node, context)
        elif isinstance(node, cst.Name | cst.Attribute):
            yield from self._name(node, context)

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | Finding]:
        name = context.qualified_name(call.func)
        if name in CUDA_AUTOCAST:
            of_xla = name == "torch_xla.amp.autocast"
            bound = bind(call, XLA_PARAMETERS if of_xla else CUDA_PARAMETERS)
            yield from self._region(call, context, bound, device=None)
        elif name in AUTOCAST:
            bound = bind(call, PARAMETERS)
            device = bound.get("device_type") if bound else None
            value = _device_type(device, context) if device else None
            if bound is None or value == "cuda" or (value == "xla" and context.portable):
                yield from self._region(call, context, bound, device)
            elif value == "xla" or value is None:
                yield from self._unknown_type(call, bound.get("dtype"), context)

    def _region(
        self,
        call: cst.Call,
        context: Workspace,
        bound: dict[str, cst.Arg] | None,
        device: cst.Arg | None,
    ) -> Iterator[Edit | Finding]:
        if bound is None:
            message = (
                "autocast with arguments that cannot be read off the call: a region for CUDA runs in "
                f"float32 on XLA; {_said(context)}"
            )
            yield from self.report(call, message)
            return
        dtype = bound.get("dtype")
        half = dtype is not None and context.qualified_name(dtype.value) in HALF
        if context.portable:
            yield self._by_shims(call, context, bound, half)
            return
        yield from self._unknown_type(call, dtype, context)
        torch = context.imports.require("torch")
        bfloat16 = cst.parse_expression(f"{torch}.bfloat16")
        kept = [(n, call.args.index(bound[n])) for n in ("enabled", "cache_enabled") if n in bound]
        xla = context.string("xla", like=device.value if device else None)
        function = call.func if device else cst.parse_expression(f"{torch}.autocast")

        def replace(updated: cst.Call) -> cst.Call:
            first = updated.args[call.args.index(device)] if device else cst.Arg(xla)
            kind: cst.BaseExpression = bfloat16
            if dtype is not None and not half:
                kind = updated.args[call.args.index(dtype)].value
            args = [first.with_changes(value=xla), keyword_arg("dtype", kind)]
            for name, index in kept:
                arg = updated.args[index]
                args.append(arg if arg.keyword else keyword_arg(name, arg.value))
            return with_args(updated, args).with_changes(func=function)

        gone: list[cst.CSTNode] = [] if device else [call.func]
        if device and string_value(device.value) is not None:
            gone.append(device.value)
        if half and dtype is not None:
            gone.append(dtype.value)
        if not device and "device" in bound:
            gone.append(bound["device"])
        message = f"{code(call)} → torch.autocast for XLA in bfloat16"
        yield self.edit(call, replace, message, consumes=gone)

    def _by_shims(
        self, call: cst.Call, context: Workspace, bound: dict[str, cst.Arg], half: bool
    ) -> Edit:
        """Return the edit in the portable style: on CUDA the type stays what it was there."""
        function = cst.parse_expression(f"{context.imports.require('shims')}.autocast")
        for_cuda = _is_for_cuda(call, context)
        # A region for XLA has no float16.
        typed = for_cuda or not half
        wanted = (*(["dtype"] if typed else []), "enabled", "cache_enabled")
        kept = [(name, call.args.index(bound[name])) for name in wanted if name in bound]
        # CUDA's own type, where none is named and the region ever computes in it.
        off = "enabled" in bound and code(bound["enabled"].value) == "False"
        made = [] if "dtype" in bound or not for_cuda or off else [_cudas_type(call, context)]

        def replace(updated: cst.Call) -> cst.Call:
            args = list(made)
            for name, index in kept:
                arg = updated.args[index]
                args.append(arg if arg.keyword else keyword_arg(name, arg.value))
            if not args:
                return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
            return with_args(updated, args).with_changes(func=function)

        gone = [arg for name, arg in bound.items() if name not in wanted]
        message = f"{code(call)} → shims.autocast, in its type on CUDA and in bfloat16 on XLA"
        return self.edit(call, replace, message, consumes=[call.func, *gone])

    def _unknown_type(
        self, call: cst.Call, dtype: cst.Arg | None, context: Workspace
    ) -> Iterator[Finding]:
        """Report a type that is neither written in the call nor bound in the script."""
        if dtype is None or context.qualified_name(dtype.value) is not None:
            return
        if isinstance(dtype.value, cst.Name):
            _, value = context.bound_to(dtype.value)
            if isinstance(value, cst.BaseExpression) and any(_types(value, context)):
                return
        elif any(_types(dtype.value, context)):
            return
        yield from self.report(
            call,
            f"the type of the region is `{code(dtype.value)}`: see that it is torch.bfloat16, float16 "
            "has no gradient scaler on XLA",
        )

    def _name(self, node: cst.Name | cst.Attribute, context: Workspace) -> Iterator[Edit | Finding]:
        above = context.parent(node)
        name = context.qualified_name(node)
        if name is None or isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom):
            return
        if name in CUDA_AUTOCAST and _is_handed_over(node, above):
            yield self._partial(node, context)
        elif name in HALF and (region := _region_of(node, context)):
            if _is_dropped(node, context):
                return
            if context.portable:
                if not _is_by_shims(region, context):
                    yield self._by_device(node, context)
                return
            bfloat16 = cst.parse_expression(f"{context.imports.require('torch')}.bfloat16")
            message = f"{code(node)} → torch.bfloat16: the type of an autocast region"
            if isinstance(above, cst.IfExp) and _is_the_same_then(above, node, context):
                message = f"`{code(above)}` → torch.bfloat16: the type of an autocast region"
                yield self.edit(above, lambda _: bfloat16, message, consumes=[node])
                return
            yield self.edit(node, lambda _: bfloat16, message, consumes=[node])

    def _by_device(self, node: cst.BaseExpression, context: Workspace) -> Edit:
        """Return the edit of a type, in the portable style, of a region that stays torch's own."""
        shims = context.imports.require("shims")
        made = cst.parse_expression(f"{shims}.autocast_dtype({code(node)})")
        message = f"{code(node)}: bfloat16 on XLA, the type of an autocast region"
        return self.edit(node, lambda _: made, message)

    def _partial(self, node: cst.BaseExpression, context: Workspace) -> Edit:
        message = f"{code(node)} → autocast for the replica's device in bfloat16"
        if context.portable:
            ours = f"{context.imports.require('shims')}.autocast"
            if context.qualified_name(node) != "torch_xla.amp.autocast":
                partial = f"{context.imports.require('functools')}.partial"
                half = f"dtype={context.imports.require('torch')}.float16"
                ours = f"{partial}({ours}, {half})"
            message = f"{code(node)} → shims.autocast, in float16 on CUDA and in bfloat16 on XLA"
            made = cst.parse_expression(ours)
            return self.edit(node, lambda _: made, message, consumes=[node])
        partial = f"{context.imports.require('functools')}.partial"
        torch = context.imports.require("torch")
        xla = context.string("xla").value
        made = cst.parse_expression(f"{partial}({torch}.autocast, {xla}, dtype={torch}.bfloat16)")
        return self.edit(node, lambda _: made, message, consumes=[node])

    def _handed_on(self, alias: cst.ImportAlias, context: Workspace) -> Iterator[Finding]:
        """Report a region that the script imports and does not use: other modules import it from here."""
        statement = context.parent(alias)
        if not isinstance(statement, cst.ImportFrom) or statement.module is None:
            return
        name = f"{code(statement.module)}.{alias.evaluated_name}"
        bound = alias.evaluated_alias or alias.evaluated_name
        imports = cst.ImportAlias | cst.ImportFrom | cst.AsName
        used = any(
            not isinstance(context.parent(use), imports)
            and not any(isinstance(above, cst.ImportFrom) for above in context.ancestors(use))
            for use in context.references(bound)
        )
        if name in CUDA_AUTOCAST and not used:
            yield from self.report(
                alias,
                f"{name} is imported for other modules: its regions run in float32 on XLA; give them "
                f"{_said(context)}",
            )


def _is_the_same_then(choice: cst.IfExp, half: cst.CSTNode, context: Workspace) -> bool:
    """Whether both sides of `choice` are bfloat16 once `half` is, and its test is a plain comparison."""
    sides = {id(choice.body): choice.orelse, id(choice.orelse): choice.body}
    other = sides.get(id(half))
    if other is None or context.qualified_name(other) != "torch.bfloat16":
        return False
    return not any(
        isinstance(part, cst.Call | cst.NamedExpr | cst.Attribute) for part in nodes(choice.test)
    )


def _is_handed_over(node: cst.CSTNode, above: cst.CSTNode | None) -> bool:
    """Whether the region itself is kept or chosen, to be called later: `cast = autocast if amp else none`."""
    if isinstance(above, cst.IfExp):
        return above.test is not node
    return isinstance(above, cst.Assign | cst.Return | cst.DictElement)


def _said(context: Workspace) -> str:
    """Return the region that is right in the chosen style, for a message."""
    return (
        "shims.autocast(dtype=torch.float16)"
        if context.portable
        else "torch.autocast('xla', dtype=torch.bfloat16)"
    )


def _types(value: cst.BaseExpression, context: Workspace) -> Iterator[str]:
    """Yield the names in `value` that are types of torch."""
    for kind in (cst.Attribute, cst.Name):
        for node in nodes_of(value, kind):
            name = context.qualified_name(node) or ""
            if name in HALF or name in ("torch.bfloat16", "torch.float32", "torch.float"):
                yield name


def _cudas_type(call: cst.Call, context: Workspace) -> cst.Arg:
    """The type that torch takes for a region that names none: float16 on CUDA."""
    torch = context.imports.require("torch")
    text = f"{torch}.float16"
    device = (bind(call, PARAMETERS) or {}).get("device_type")
    if device is not None and isinstance(device.value, cst.IfExp):
        # On the CPU, which is chosen here too, it is another one.
        text = f"{torch}.get_autocast_dtype({code(context.vocabulary.device_type())})"
    return keyword_arg("dtype", cst.parse_expression(text))


def _is_by_shims(region: cst.Call, context: Workspace) -> bool:
    """Whether a region becomes `shims.autocast` in the portable style, which knows what XLA lacks."""
    if _is_for_cuda(region, context):
        return True
    device = (bind(region, PARAMETERS) or {}).get("device_type")
    return device is not None and _device_type(device, context) == "xla"


def _region_of(node: cst.CSTNode, context: Workspace) -> cst.Call | None:
    """The autocast region that the type `node` reaches by way of an expression or of one name, if any."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.Call):
            whole = isinstance(below, cst.Arg) and below.value is node
            if whole and _is_for_cuda(above, context):
                return None  # the region's own edit replaces it
            return above if _is_dtype_of_region(below, above, context) else None
        if isinstance(above, cst.Assign):
            target = above.targets[0].target
            if len(above.targets) != 1 or not isinstance(target, cst.Name):
                return None
            return _region_of_name(target, context)
        if isinstance(above, cst.BaseStatement | cst.Lambda):
            return None
        below = above
    return None


def _is_for_cuda(call: cst.Call, context: Workspace) -> bool:
    name = context.qualified_name(call.func)
    device = (bind(call, PARAMETERS) or {}).get("device_type") if name in AUTOCAST else None
    return name in CUDA_AUTOCAST or (device is not None and _device_type(device, context) == "cuda")


def _device_type(arg: cst.Arg, context: Workspace) -> str | None:
    """Return the type of device in the argument; of a choice by CUDA's availability, CUDA."""
    value = arg.value
    if isinstance(value, cst.IfExp) and _asks(value.test, context):
        value = value.orelse if isinstance(value.test, cst.UnaryOperation) else value.body
    return string_value(value)


def _asks(test: cst.BaseExpression, context: Workspace) -> bool:
    return any(context.qualified_name(call.func) in ASKED for call in nodes_of(test, cst.Call))


def _is_dropped(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is what a choice by CUDA's availability does not take."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.IfExp) and _asks(above.test, context):
            negated = isinstance(above.test, cst.UnaryOperation)
            if below is (above.body if negated else above.orelse):
                return True
        below = above
    return False


def _is_dtype_of_region(arg: cst.CSTNode, call: cst.Call, context: Workspace) -> bool:
    name = context.qualified_name(call.func)
    if name not in CUDA_AUTOCAST and name not in AUTOCAST:
        return False
    bound = bind(call, PARAMETERS if name in AUTOCAST else CUDA_PARAMETERS) or {}
    device = bound.get("device_type")
    return bound.get("dtype") is arg and not (device and string_value(device.value) == "cpu")


def _region_of_name(target: cst.Name, context: Workspace) -> cst.Call | None:
    for use in context.references(target.value):
        arg = context.parent(use)
        call = context.parent(arg)
        if isinstance(arg, cst.Arg) and isinstance(call, cst.Call):
            if not _is_dtype_of_region(arg, call, context):
                continue
            _, value = context.bound_to(use)
            assign = context.parent(context.parent(target))
            if isinstance(assign, cst.Assign) and value is assign.value:
                return call
    return None
