"""Mixed precision: CUDA's float16 regions become bfloat16 regions of XLA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.target import BOTH, in_words
from migrate.catalogue.torch_other import TYPED_AUTOCAST
from migrate.check.hazard import Severity
from migrate.check.rules.dtypes.float16 import FLOAT16
from migrate.reading.values.region_arguments import (
    PARTIAL,
    Arguments,
    arguments,
    is_type_of_options,
)
from migrate.reading.values.region_types import HALF, WIDE, types_of
from migrate.rewrite.edits.gpu_conditions import ASKED
from migrate.rewrite.edits.nodes import first_in, keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, nodes_of, string_value

CUDA_AUTOCAST = names(*torch_cuda.AUTOCAST) | {"torch_xla.amp.autocast"}
AUTOCAST = names(*TYPED_AUTOCAST)
CUDA_PARAMETERS = ("enabled", "dtype", "cache_enabled")
XLA_PARAMETERS = ("device", "enabled", "dtype", "cache_enabled")  # torch_xla.amp.autocast
PARAMETERS = ("device_type", "dtype", "enabled", "cache_enabled")
FOR_CUDA = (
    "autocast for CUDA silently computes in float32 on XLA: "
    'torch.autocast("xla", dtype=torch.bfloat16)'
)
REFUSED = "torch.autocast refuses float32 on XLA"


class Autocast(Rule):
    """Autocast regions run in bfloat16 on XLA.

    **Why.** Autocast switches operations of the device that it names. On XLA, autocast for CUDA warns at
    most, and everything is computed in float32. A region for XLA in float32 is switched off: inputs in
    bfloat16 stay bfloat16, which CUDA would make float32.

    **What it does.** `torch.cuda.amp.autocast(…)` and `torch.autocast("cuda", …)` become
    `torch.autocast("xla", dtype=torch.bfloat16, …)`, as context managers and as decorators, `enabled` and
    `cache_enabled` kept. A `dtype` of float16 becomes bfloat16, also where a name or a dictionary of types
    leads to it: float16 needs a gradient scaler, bfloat16 has the range of float32. In the portable style the
    script's type stays its type on CUDA: `shims.autocast(dtype=torch.float16)` is bfloat16 on XLA only.
    Arguments in a dictionary (`autocast(**options)`) are followed to where the script writes it, and
    `functools.partial(torch.autocast, "cuda", …)` is a region too.

    The body of a region in float32 sets the type: `torch.set_autocast_dtype("xla", torch.float32)`.

    **Other lists.** The region for XLA has other lists than that for CUDA: of bfloat16 inputs, `exp`, `log`
    and their kin, `rsqrt`, `reciprocal`, `sum`, `cumsum`, `cumprod`, `logsumexp`, `norm`, `normalize`,
    `cosine_similarity`, `dist`, `softplus`, and `layer_norm` and `group_norm` without weights in float32,
    give bfloat16 on XLA and float32 on CUDA. `softmax`, `log_softmax`, `prod`, `x ** n` and nearly all losses
    give float32 on both. A TPU adds numbers of bfloat16 in float32 and rounds the sum once; XLA on a CPU
    rounds after each addition, except in simulated replicas. Where the type of the result counts, compute it
    of `x.float()` within `with torch.autocast("xla", enabled=False):`.

    **Reported.** A region for XLA in float32. Arguments in a dictionary, or a `dtype`, that the script does
    not show; a float16 that reaches its region by ways that are not followed; a region in float32 that is
    made in one place and entered in another; an autocast that the script imports for other modules.

    Source: torch 2.9 and torch_xla 2.9 (measured: the type of a Linear's result in each region, of inputs and
    weights in float32 and bfloat16; the lists of torch's own tests of autocast; `torch_xla.amp.autocast`
    raises for `'xla'` and ignores itself off the TPU).
    """

    name = "autocast"
    code = "XLA803"
    targets = BOTH
    on_torch_tpu = (
        "The region is `torch.autocast('tpu', dtype=torch.bfloat16)`. A region for CUDA that is "
        "left does nothing, with no error."
    )
    beside_frameworks = True
    nodes = (cst.Call, cst.Attribute, cst.Name, cst.ImportAlias)
    words = "autocast"
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
            from functools import partial

            import torch


            def train(model, x, args):
                options = dict(dtype=torch.float16, enabled=args.amp)
                region = partial(torch.autocast, 'cuda', enabled=False)
                with torch.autocast('cuda', **options):
                    x = model(x)
                with region():
                    return model(x)
            """,
            """
            from functools import partial

            import torch


            def train(model, x, args):
                options = dict(dtype=torch.bfloat16, enabled=args.amp)
                region = partial(torch.autocast, 'xla', dtype=torch.bfloat16, enabled=False)
                with torch.autocast('xla', **options):
                    x = model(x)
                with region():
                    return model(x)
            """,
        ),
        rewritten(
            """
            import torch
            from torch.cuda import amp


            @amp.autocast(dtype=torch.float32)
            def embed(layer, steps):
                return layer(steps)


            def train(model, x, half):
                if half:
                    kind = torch.float16
                else:
                    kind = torch.bfloat16
                with amp.autocast(dtype=kind):
                    x = model(x)
                with torch.autocast("cuda", dtype=torch.float32, enabled=half):
                    # in full precision
                    return model.head(x)
            """,
            """
            import torch


            @torch.autocast("xla", dtype=torch.bfloat16)
            def embed(layer, steps):
                torch.set_autocast_dtype("xla", torch.float32)  # torch.autocast refuses float32 on XLA
                return layer(steps)


            def train(model, x, half):
                kind = torch.bfloat16
                with torch.autocast("xla", dtype=kind):
                    x = model(x)
                with torch.autocast("xla", dtype=torch.bfloat16, enabled=half):
                    torch.set_autocast_dtype("xla", torch.float32)  # torch.autocast refuses float32 on XLA
                    # in full precision
                    return model.head(x)
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
        rewritten(
            """
            import torch


            def region(half):
                kind = torch.float32
                if half:
                    kind = torch.float16
                return torch.autocast('cuda', dtype=kind)
            """,
            """
            import torch


            def region(half):
                kind = torch.float32
                if half:
                    kind = torch.bfloat16
                return torch.autocast('xla', dtype=kind)
            """,
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


            class Net(torch.nn.Module):
                def __init__(self, half):
                    self.kind = torch.float16 if half else torch.bfloat16

                def forward(self, x):
                    with torch.autocast('cuda', dtype=self.kind):
                        return self.layer(x)
            """,
            "the type of the region may be torch.float16 (line",
        ),
        reported(
            """
            import torch


            class Net(torch.nn.Module):
                def __init__(self):
                    self.kind = torch.float16

                def forward(self, x):
                    with torch.autocast('cuda', dtype=self.kind):
                        return self.layer(x)
            """,
            "the type of the region is torch.float16 (line",
        ),
        reported(
            """
            import torch

            region = torch.autocast('cuda', dtype=torch.float32)
            """,
            "switches itself off",
        ),
        reported(
            """
            import torch


            def region(options):
                return torch.cuda.amp.autocast(**options)
            """,
            "runs in float32",
        ),
        checked(
            """
            import torch
            from torch.cuda.amp import autocast


            def step(model, x, device):
                with autocast():  # XLA803
                    y = model(x)
                with torch.autocast("cuda", dtype=torch.float16):  # XLA803
                    y = model(y)
                with torch.autocast("cuda", enabled=False):  # XLA803 info
                    y = model(y)
                with torch.autocast(device.type), torch.autocast("cpu"):
                    return model(y)
            """
        ),
        checked(
            """
            import torch


            def embed(layer, x):
                with torch.autocast("xla", dtype=torch.float32):  # XLA803 warning
                    y = layer(x)
                with torch.autocast("xla", dtype=torch.float32, enabled=False):
                    y = layer(y)
                with torch.autocast("xla", dtype=torch.bfloat16):
                    torch.set_autocast_dtype("xla", torch.float32)
                    return layer(y)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one region, one type that leads to it, or one import."""
        if isinstance(node, cst.ImportAlias):
            yield from self._handed_on(node, context)
        elif isinstance(node, cst.Call):
            yield from self._call(node, context)
        elif isinstance(node, cst.Name | cst.Attribute):
            yield from self._name(node, context)

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        name, parameters = _region(call, context)
        if name in CUDA_AUTOCAST:
            region = arguments(call, parameters, context, skipped=_skipped(call, context))
            yield from self._region(call, context, region, device=None)
        elif name in AUTOCAST:
            region = arguments(call, parameters, context, skipped=_skipped(call, context))
            device = region.bound.get("device_type") if region else None
            value = _device_type(device, context) if device else None
            own = context.vocabulary.device_name
            if region is None or value == "cuda" or (value == own and context.portable):
                yield from self._region(call, context, region, device)
            elif value == own or value is None:
                dtype = region.bound.get("dtype")
                wide = value == own and _is_refused(dtype, context)
                if wide and not _is_off(region):
                    yield from self.report(call, _unwidened(context), Severity.WARNING)
                yield from self._unknown_types(call, region, context)

    def _region(
        self,
        call: cst.Call,
        context: Workspace,
        arguments: Arguments | None,
        device: cst.Arg | None,
    ) -> Iterator[Edit | RuleFinding]:
        if arguments is None or (context.portable and arguments.names_type is None):
            message = (
                "autocast with arguments that cannot be read off the call: a region for CUDA runs in "
                f"float32 on XLA; {_said(context)}"
            )
            yield from self.report(call, message)
            return
        bound, skipped = arguments.bound, _skipped(call, context)
        dtype = bound.get("dtype")
        half = dtype is not None and context.qualified_name(dtype.value) in HALF
        if context.portable:
            yield self._by_shims(call, context, arguments, half)
            return
        wide = _is_refused(dtype, context)
        off = _is_off(arguments)
        body = _body(call, context) if wide and not off else None
        if body is not None:
            yield self._widened(body, context)
        elif wide and not off:
            yield from self.report(call, _unwidened(context))
            wide = False
        yield from self._unknown_types(call, arguments, context)
        torch = context.imports.require("torch")
        bfloat16 = cst.parse_expression(f"{torch}.bfloat16")
        kept = [(n, call.args.index(bound[n])) for n in ("enabled", "cache_enabled") if n in bound]
        xla = context.string(context.vocabulary.device_name, like=device.value if device else None)
        named = _named(call, context)
        function = named if device else cst.parse_expression(f"{torch}.autocast")

        def replace(updated: cst.Call) -> cst.Call:
            first = updated.args[call.args.index(device)] if device else cst.Arg(xla)
            kind: cst.BaseExpression = bfloat16
            if dtype is not None and not half and not wide:
                kind = updated.args[call.args.index(dtype)].value
            args = [first.with_changes(value=xla)]
            if (dtype is not None or arguments.names_type is False) and not (wide and off):
                args.append(keyword_arg("dtype", kind))
            for name, index in kept:
                arg = updated.args[index]
                args.append(arg if arg.keyword else keyword_arg(name, arg.value))
            if arguments.spread is not None:
                args.append(updated.args[call.args.index(arguments.spread)])
            return _calling(updated, function, args, skipped)

        gone: list[cst.CSTNode] = [] if device else [named]
        if device and string_value(device.value) is not None:
            gone.append(device.value)
        if (half or wide) and dtype is not None:
            gone.append(dtype.value)
        if not device and "device" in bound:
            gone.append(bound["device"])
        message = f"{code(call)} → torch.autocast for XLA in {'float32' if wide else 'bfloat16'}"
        severity = Severity.INFO if off else None
        yield self.edit(
            call,
            replace,
            message,
            consumes=gone,
            wrong="" if off else FOR_CUDA,
            severity=severity,
            code="XLA819" if context.qualified_name(named) == "torch_xla.amp.autocast" else "",
        )

    def _widened(self, body: cst.BaseSuite, context: Workspace) -> Edit:
        """Return the edit that makes the statements of a region compute in float32."""
        text = _set_float32(context)

        def replace(updated: cst.BaseSuite) -> cst.BaseSuite:
            line = cst.parse_statement(f"{text}  # {in_words(REFUSED, context.target)}")
            return first_in(updated, cst.ensure_type(line, cst.SimpleStatementLine))

        return self.edit(body, replace, f"{text} in the body: {REFUSED}")

    def _by_shims(
        self, call: cst.Call, context: Workspace, arguments: Arguments, half: bool
    ) -> Edit:
        """Return the edit in the portable style. On CUDA the type stays the same."""
        bound, skipped = arguments.bound, _skipped(call, context)
        function = cst.parse_expression(f"{context.imports.require('shims')}.autocast")
        for_cuda = _is_for_cuda(call, context)
        # A region for XLA has no float16.
        typed = for_cuda or not half
        wanted = (*(["dtype"] if typed else []), "enabled", "cache_enabled")
        kept = [(name, call.args.index(bound[name])) for name in wanted if name in bound]
        # CUDA's own type, where none is named and the region ever computes in it.
        off = _is_off(arguments)
        dtype_arguments = (
            [] if arguments.names_type or not for_cuda or off else [_cudas_type(call, context)]
        )

        def replace(updated: cst.Call) -> cst.Call:
            args = list(dtype_arguments)
            for name, index in kept:
                arg = updated.args[index]
                args.append(arg if arg.keyword else keyword_arg(name, arg.value))
            if arguments.spread is not None:
                args.append(updated.args[call.args.index(arguments.spread)])
            if not args and not skipped:
                return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
            return _calling(updated, function, args, skipped)

        gone = [arg for name, arg in bound.items() if name not in wanted]
        message = f"{code(call)} → shims.autocast, in its type on CUDA and in bfloat16 on XLA"
        return self.edit(call, replace, message, consumes=[_named(call, context), *gone])

    def _unknown_types(
        self, call: cst.Call, arguments: Arguments, context: Workspace
    ) -> Iterator[RuleFinding]:
        """Report types that are neither written in the call nor bound in the script."""
        types = [arguments.bound["dtype"].value] if "dtype" in arguments.bound else []
        types += [options["dtype"] for options in arguments.options if "dtype" in options]
        for dtype in types:
            yield from self._unknown_type(call, dtype, context)

    def _unknown_type(
        self, call: cst.Call, dtype: cst.BaseExpression, context: Workspace
    ) -> Iterator[RuleFinding]:
        types = types_of(dtype, context)
        if types is None and any(_types(dtype, context)):
            return
        if types is None:
            message = (
                f"the type of the region is `{code(dtype)}`: see that it is torch.bfloat16; float16 "
                "has no gradient scaler on XLA, and for float32 the region is switched off"
            )
            yield from self.report(call, message, Severity.INFO)
            return
        only = all(context.qualified_name(type_) in HALF for type_ in types)
        be = "is" if only else "may be"  # a setting may choose another one
        for type_ in types:
            if context.qualified_name(type_) in HALF and not _is_edited(type_, context):
                line = context.position(type_).line
                message = (
                    f"the type of the region {be} torch.float16 ({at_line(line)}), which has no gradient "
                    "scaler "
                    f"on XLA: write torch.bfloat16 in {at_line(line)}"
                )
                yield from self.report(call, message)

    def _name(
        self, node: cst.Name | cst.Attribute, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
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
            yield self.edit(
                node,
                lambda _: bfloat16,
                message,
                consumes=[node],
                wrong=f"{code(node)}: {FLOAT16}",
                severity=Severity.WARNING,
                code="XLA502",
            )

    def _by_device(self, node: cst.BaseExpression, context: Workspace) -> Edit:
        """Return the edit of a type, in the portable style, of a region that stays torch's own."""
        shims = context.imports.require("shims")
        expression = cst.parse_expression(f"{shims}.autocast_dtype({code(node)})")
        message = f"{code(node)}: bfloat16 on XLA, the type of an autocast region"
        return self.edit(node, lambda _: expression, message)

    def _partial(self, node: cst.BaseExpression, context: Workspace) -> Edit:
        message = f"{code(node)} → autocast for the replica's device in bfloat16"
        if context.portable:
            ours = f"{context.imports.require('shims')}.autocast"
            if context.qualified_name(node) != "torch_xla.amp.autocast":
                partial = f"{context.imports.require('functools')}.partial"
                half = f"dtype={context.imports.require('torch')}.float16"
                ours = f"{partial}({ours}, {half})"
            message = f"{code(node)} → shims.autocast, in float16 on CUDA and in bfloat16 on XLA"
            expression = cst.parse_expression(ours)
            return self.edit(node, lambda _: expression, message, consumes=[node])
        partial = f"{context.imports.require('functools')}.partial"
        torch = context.imports.require("torch")
        xla = context.string(context.vocabulary.device_name).value
        expression = cst.parse_expression(
            f"{partial}({torch}.autocast, {xla}, dtype={torch}.bfloat16)"
        )
        return self.edit(node, lambda _: expression, message, consumes=[node])

    def _handed_on(self, alias: cst.ImportAlias, context: Workspace) -> Iterator[RuleFinding]:
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


def _is_off(arguments: Arguments) -> bool:
    """Whether a region is switched off in any case."""
    enabled = arguments.bound.get("enabled")
    return enabled is not None and code(enabled.value) == "False"


def _skipped(call: cst.Call, context: Workspace) -> int:
    """Return how many of the first arguments are not the region's: one of `partial(autocast, …)`."""
    return int(context.qualified_name(call.func) == PARTIAL and bool(call.args))


def _named(call: cst.Call, context: Workspace) -> cst.BaseExpression:
    """Return the name of what `call` calls, or binds by `functools.partial`."""
    return call.args[0].value if _skipped(call, context) else call.func


def _region(call: cst.Call, context: Workspace) -> tuple[str | None, Sequence[str]]:
    """Return the qualified name of what `call` calls or binds, and the parameters of that as a region."""
    name = context.qualified_name(_named(call, context))
    if name == "torch_xla.amp.autocast":
        return name, XLA_PARAMETERS
    return name, CUDA_PARAMETERS if name in CUDA_AUTOCAST else PARAMETERS


def _calling(
    updated: cst.Call, function: cst.BaseExpression, args: list[cst.Arg], skipped: int
) -> cst.Call:
    """Return the call of `function`, or of `functools.partial` with it, with other arguments."""
    if skipped:
        return with_args(updated, [updated.args[0].with_changes(value=function), *args])
    return with_args(updated, args).with_changes(func=function)


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


def _set_float32(context: Workspace) -> str:
    """Return the call that makes the region around it compute in float32."""
    torch = context.imports.require("torch")
    device = context.string(context.vocabulary.device_name).value
    return f"{torch}.set_autocast_dtype({device}, {torch}.float32)"


def _unwidened(context: Workspace) -> str:
    """Return the message at a region in float32 whose statements are not seen."""
    return (
        f"a region in float32: {REFUSED} and switches itself off, so that bfloat16 stays bfloat16 in it; "
        f"make it with torch.bfloat16 and call {_set_float32(context)} in its body"
    )


def _is_wide(dtype: cst.BaseExpression, context: Workspace) -> bool:
    """Whether a region is given float32, whatever is chosen."""
    types = types_of(dtype, context)
    return bool(types) and all(context.qualified_name(type_) in WIDE for type_ in types or ())


def _is_refused(dtype: cst.Arg | None, context: Workspace) -> bool:
    """Whether the region switches itself off for its type: float32 on torch_xla. torch_tpu takes it."""
    return dtype is not None and not context.for_torch_tpu and _is_wide(dtype.value, context)


def _body(call: cst.Call, context: Workspace) -> cst.BaseSuite | None:
    """Return the statements of a region: those below its `with`, or of the function that it decorates."""
    above = context.parent(call)
    statement = context.parent(above)
    if isinstance(above, cst.Decorator) and isinstance(statement, cst.FunctionDef):
        return statement.body
    if isinstance(above, cst.WithItem) and isinstance(statement, cst.With):
        regions = [
            item
            for item in statement.items
            if isinstance(item.item, cst.Call)
            and _region(item.item, context)[0] in CUDA_AUTOCAST | AUTOCAST
        ]
        return statement.body if len(regions) == 1 else None
    return None


def _is_edited(type_: cst.BaseExpression, context: Workspace) -> bool:
    """Whether the rule makes bfloat16 of a float16 by itself."""
    above = context.parent(type_)
    of_region = isinstance(above, cst.Arg) and _region_of_arg(above, context)
    return bool(of_region) or _region_of(type_, context) is not None


def _region_of_arg(arg: cst.Arg, context: Workspace) -> bool:
    """Whether an argument is the type of a region."""
    call = context.parent(arg)
    return isinstance(call, cst.Call) and _is_dtype_of_region(arg, call, context)


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
    device = _device_of(call, context)
    if device is not None and isinstance(device.value, cst.IfExp):
        # On the CPU, which is chosen here too, it is another one.
        text = f"{torch}.get_autocast_dtype({code(context.vocabulary.device_type())})"
    return keyword_arg("dtype", cst.parse_expression(text))


def _is_by_shims(region: cst.Call, context: Workspace) -> bool:
    """Whether a region becomes `shims.autocast` in the portable style, which knows what XLA lacks."""
    if _is_for_cuda(region, context):
        return True
    device = _device_of(region, context)
    return device is not None and _device_type(device, context) == "xla"


def _region_of(node: cst.CSTNode, context: Workspace) -> cst.Call | None:
    """Return the autocast region that the type `node` reaches through an expression or a name, if any."""
    below = node
    of_options = False
    for above in context.ancestors(node):
        if is_type_of_options(below, context):
            of_options = True
        elif isinstance(above, cst.Call):
            whole = isinstance(below, cst.Arg) and below.value is node
            if whole and _is_for_cuda(above, context):
                return None  # the region's own edit replaces it
            return above if _is_dtype_of_region(below, above, context) else None
        elif isinstance(above, cst.Assign):
            target = above.targets[0].target
            if len(above.targets) != 1 or not isinstance(target, cst.Name):
                return None
            return _region_of_name(target, context, spread=of_options)
        elif isinstance(above, cst.BaseStatement | cst.Lambda):
            return None
        below = above
    return None


def _device_of(call: cst.Call, context: Workspace) -> cst.Arg | None:
    """Return the argument of a region that is the type of its device."""
    _, parameters = _region(call, context)
    region = arguments(call, parameters, context, skipped=_skipped(call, context))
    return region.bound.get("device_type") if region is not None else None


def _is_for_cuda(call: cst.Call, context: Workspace) -> bool:
    name, _ = _region(call, context)
    device = _device_of(call, context) if name in AUTOCAST else None
    return name in CUDA_AUTOCAST or (device is not None and _device_type(device, context) == "cuda")


def _device_type(arg: cst.Arg, context: Workspace) -> str | None:
    """Return the type of device in the argument; of a choice by CUDA's availability, CUDA."""
    value = arg.value
    if isinstance(value, cst.IfExp) and _asks(value.test, context):
        value = value.orelse if isinstance(value.test, cst.UnaryOperation) else value.body
    return string_value(value)


def _asks(test: cst.BaseExpression, context: Workspace) -> bool:
    return any(context.qualified_name(call.func) in ASKED for call in context.below(test, cst.Call))


def _is_dropped(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is the side that a choice by CUDA's availability does not take."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.IfExp) and _asks(above.test, context):
            negated = isinstance(above.test, cst.UnaryOperation)
            if below is (above.body if negated else above.orelse):
                return True
        below = above
    return False


def _is_dtype_of_region(arg: cst.CSTNode, call: cst.Call, context: Workspace) -> bool:
    name, parameters = _region(call, context)
    if name not in CUDA_AUTOCAST and name not in AUTOCAST:
        return False
    region = arguments(call, parameters, context, skipped=_skipped(call, context))
    if region is None:
        return False
    device = region.bound.get("device_type")
    of_cpu = device is not None and string_value(device.value) == "cpu"
    return (region.bound.get("dtype") is arg or region.spread is arg) and not of_cpu


def _region_of_name(
    target: cst.Name, context: Workspace, *, spread: bool = False
) -> cst.Call | None:
    """Return the region that takes what is assigned to `target` as its type, or spreads it."""
    assign = context.parent(context.parent(target))
    for use in context.references(target.value):
        arg = context.parent(use)
        while isinstance(arg, cst.BooleanOperation | cst.IfExp):  # `dtype=half or torch.bfloat16`
            arg = context.parent(arg)
        if not isinstance(arg, cst.Arg | cst.DictElement) or not isinstance(assign, cst.Assign):
            continue
        if not any(value is assign.value for value in context.bound_values(use)):
            continue
        call = context.parent(arg)
        if is_type_of_options(arg, context) and not spread:
            if (region := _region_of(use, context)) is not None:
                return region
        elif isinstance(arg, cst.Arg) and isinstance(call, cst.Call):
            spreads = arg.star == "**"
            if spreads is spread and _is_dtype_of_region(arg, call, context):
                return call
    return None
