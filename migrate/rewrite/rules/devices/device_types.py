"""Questions about the type of a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_cuda import TYPES
from migrate.catalogue.words import DEVICE_NAME, OPTIONS
from migrate.check.hazard import Severity
from migrate.check.only_cuda import goes_well, is_negated
from migrate.reading.facts import facts_of
from migrate.reading.replicas.cuda_arguments import told
from migrate.reading.values.devices import Kind, is_move
from migrate.rewrite.edits.gpu_conditions import is_asked
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, string_value

# What takes the type of a device, not a device, also by `device=`.
OF_TYPES = frozenset({"GradScaler", "autocast"})


# Contexts that only CUDA has.
CONTEXTS = frozenset({"torch.cuda.device", "torch.cuda.stream"})

# Where a question is well answered with no.
KERNEL = "right where it chooses a kernel written for CUDA, else ask for the type 'xla'"


class DeviceTypes(Rule):
    """Ask whether a device is XLA where the script asks whether it is CUDA.

    **Why.** On XLA `device.type` is "xla" and `x.type()` is "torch.xla.FloatTensor": the branch for the CPU
    is taken, without a word. Where that branch computes the same another way, this is information.

    **What it does.** `device.type == 'cuda'`, `'cuda' in device`, `device.startswith('cuda')`,
    `device_type in ('cuda', 'cpu')`, and the same of `args.device`, ask for `'xla'`, and the type that is
    chosen by the answer is `'xla'` too: `torch.autocast('cuda' if 'cuda' in device else 'cpu')`.
    `x.type() == 'torch.cuda.HalfTensor'` becomes `x.dtype == torch.float16`.

    **Left alone.** Comparisons with `'cpu'`: an XLA device is not one. Questions whose answer another
    library gets, as `calculate_metrics(…, cuda=device == 'cuda')`: there is no CUDA for it.

    **Reported.** `cuda=True` for another library, or a value that is true on XLA. The same questions of a
    tensor, where the answer may choose a kernel written for CUDA: there the way for the CPU is the right one.
    Comparisons of what is not seen to be a device, and with a device of its own (`'cuda:0'`).

    Source: torch_xla 2.9 (measured: the type is 'torch.xla.HalfTensor').
    """

    name = "device-types"
    code = "XLA702"
    targets = BOTH
    on_torch_tpu = "The type is `'tpu'`."
    edited = Severity.WARNING
    nodes = (cst.Comparison, cst.Call)
    examples = (
        rewritten(
            """
            import torch

            device = 'cuda'
            region = torch.autocast(device_type='cuda' if 'cuda' in device else 'cpu', dtype=torch.float16)
            other = torch.autocast('cpu' if not device.startswith('cuda') else 'cuda', enabled=False)
            device_type = 'cuda' if 'cuda' in device else 'cpu'
            assert device_type in ['cuda', 'mps', 'cpu']
            if device_type == 'cuda' or device.startswith('cuda'):
                print('fast')
            if torch.device(options['place']).type != 'cuda':
                raise SystemExit


            def is_half(x, args, model):
                if args.device.type != 'cuda':
                    model.train()
                return x.type() == 'torch.cuda.HalfTensor'
            """,
            """
            import torch
            import torch_xla

            device = 'xla'
            region = torch.autocast(device_type='xla' if 'xla' in device else 'cpu', dtype=torch.bfloat16)
            other = torch.autocast('cpu' if not device.startswith('xla') else 'xla', enabled=False)
            device_type = 'xla' if 'xla' in device else 'cpu'
            assert device_type in ['xla', 'mps', 'cpu']
            if device_type == 'xla' or device.startswith('xla'):
                print('fast')
            if torch.device(options['place']).type != 'xla':
                raise SystemExit


            def is_half(x, args, model):
                if args.device.type != 'xla':
                    model.train()
                return x.dtype == torch.float16
            """,
        ),
        left_alone(
            """
            def fast(device, model):
                return device.type != 'cpu' and model.type == 'cuda_free'
            """
        ),
        left_alone(
            """
            import torch
            from contextlib import nullcontext


            def place(device):
                return torch.cuda.device(device) if device.type == 'cuda' else nullcontext()
            """
        ),
        left_alone(
            """
            from torch_fidelity import calculate_metrics


            def evaluate(samples, device):
                options = dict(fid=True, cuda=(device == 'cuda'))
                return calculate_metrics(samples, **options)
            """
        ),
        reported(
            """
            import torch_fidelity


            def evaluate(samples):
                return torch_fidelity.calculate_metrics(samples, cuda=True)
            """,
            "that there is CUDA",
        ),
        reported(
            """
            def filtered(x, kernel, plain):
                return kernel(x) if x.device.type == 'cuda' else plain(x)
            """,
            "a kernel written for CUDA",
        ),
        checked(
            """
            import torch


            def context(device, x):
                if device.type == "cuda":  # XLA702 info
                    torch.backends.cudnn.benchmark = True
                if device.type == "cuda":  # XLA702
                    x = x.pin_memory().to(device)
                fused = hasattr(torch, "fused") and device.type == "cuda"  # XLA702 info
                if device.type != "cuda":  # XLA702
                    return x.mean() if fused else x
                if x.device.type != "cuda":  # XLA702
                    raise ValueError("no CUDA")
                if "cuda" in str(device) or device == "cuda":  # XLA702 info
                    return x.type() == "torch.cuda.HalfTensor"  # XLA702
            """
        ),
        checked(
            """
            import torch


            def context(device, backend, accelerators):
                if device.type == "cpu" or device.type != "cpu":
                    return backend == "cudnn"
                return device in accelerators
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one question, or the finding on one that may choose a kernel."""
        assert isinstance(node, cst.Comparison | cst.Call)
        if _enters_cuda(node, context):
            return
        if isinstance(node, cst.Call):
            yield from self._told(node, context)
            changes: list[Edit | RuleFinding] = [*self._prefix(node, context)]
        else:
            changes = list(self._comparison(node, context))
        asked = _asked_for(node)
        if not asked:
            yield from changes
            return
        answer = is_negated(node)
        mend = 'ask for "cpu", or for a dtype'
        if changes and not context.portable:
            mend = 'a device there has the type "xla"'
        wrong = f'a question for "{asked}" is {answer} on XLA: {mend}'
        severity = Severity.INFO if goes_well(node, facts_of(context)) else Severity.WARNING
        for change in changes:
            how_bad = replace(change, severity=severity)
            yield replace(how_bad, wrong=wrong) if isinstance(how_bad, Edit) else how_bad
        if not changes and isinstance(node, cst.Comparison) and context.references("torch"):
            is_hint = severity is Severity.INFO
            yield from self.report(node, wrong, severity, is_hint=is_hint)

    def _prefix(self, node: cst.Call, context: Workspace) -> Iterable[Edit]:
        """Yield the edits of `device.startswith('cuda')`."""
        prefix = node.args[0].value if len(node.args) == 1 else None
        if (
            prefix is not None
            and string_value(prefix) == "cuda"
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "startswith"
            and _is_device(node.func.value, context)
        ):
            yield (
                self._starts(node, context) if context.portable else self._literal(prefix, context)
            )
            yield from self._chosen(node, context)

    def _told(self, call: cst.Call, context: Workspace) -> Iterable[RuleFinding]:
        """Yield a finding for each argument by which another library takes XLA for CUDA."""
        for value, library in told(call, context):
            if id(value) in context.for_cuda or not _may_hold(value, context):
                continue
            above = context.parent(value)
            name = above.keyword if isinstance(above, cst.Arg) else None
            shown = f"{name.value}={code(value)}" if name is not None else code(value)
            if isinstance(above, cst.DictElement):
                shown = f"{code(above.key)}: {code(value)}"
            message = (
                f"`{shown}` tells {library} that there is CUDA: it looks for a GPU; give it False on "
                "a TPU, where it then runs on the CPU"
            )
            yield RuleFinding(self.name, value, message)

    def _comparison(self, node: cst.Comparison, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if len(node.comparisons) != 1:
            return
        operator, right = node.comparisons[0].operator, node.comparisons[0].comparator
        for literal, asked in ((right, node.left), (node.left, right)):
            value = string_value(literal) or ""
            if value in TYPES and isinstance(operator, cst.Equal | cst.NotEqual):
                yield from self._tensor_type(node, asked, value, context)
            elif value == "cuda" and isinstance(
                operator, cst.Equal | cst.NotEqual | cst.In | cst.NotIn
            ):
                if _is_device(asked, context):
                    yield (
                        self._is_cpu(node, literal, context)
                        if context.portable
                        else self._literal(literal, context)
                    )
                    yield from self._chosen(node, context)
                elif isinstance(asked, cst.Attribute) and asked.attr.value == "type":
                    message = f"`{code(node)}` is {is_negated(node)} on XLA: {KERNEL}"
                    yield from self.report(node, message)
        among = isinstance(operator, cst.In | cst.NotIn) and _is_device(node.left, context)
        if among and isinstance(right, cst.List | cst.Tuple | cst.Set):
            yield from self._one_of(right, context)
            if any(string_value(element.value) == "cuda" for element in right.elements):
                yield from self._chosen(node, context)

    def _one_of(
        self, types: cst.List | cst.Tuple | cst.Set, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of `device_type in ('cuda', 'cpu')`."""
        named = [element.value for element in types.elements]
        if any(string_value(value) == context.vocabulary.device_name for value in named):
            return
        for value in named:
            if string_value(value) == "cuda":
                yield self._own_type(value, context)

    def _chosen(self, test: cst.BaseExpression, context: Workspace) -> Iterable[Edit]:
        """Yield the edits of the types that a choice by `test` takes: `'cuda' if … else 'cpu'`."""
        condition: cst.BaseExpression = test
        above = context.parent(condition)
        while isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
            condition, above = above, context.parent(above)
        if isinstance(above, cst.IfExp) and above.test is condition:
            chosen = [above.body, above.orelse]
            first = next(_questions(condition, context), test)
            if first is not test or _is_moved_to(above, context):
                return
            for value in chosen:
                if string_value(value) == "cuda":
                    yield self._own_type(value, context)

    def _own_type(self, literal: cst.BaseExpression, context: Workspace) -> Edit:
        if not context.portable:
            return self._literal(literal, context)
        own = cst.parse_expression(f"{context.imports.require('shims')}.device_type()")
        message = f"{code(literal)} → the type of the replica's device"
        return self.edit(literal, lambda _: own, message, consumes=[literal])

    def _tensor_type(
        self, node: cst.Comparison, asked: cst.BaseExpression, value: str, context: Workspace
    ) -> Iterable[Edit]:
        if not isinstance(asked, cst.Call) or asked.args or asked is not node.left:
            return
        if not isinstance(asked.func, cst.Attribute) or asked.func.attr.value != "type":
            return
        torch = context.imports.require("torch")
        dtype = cst.parse_expression(f"{torch}.{TYPES[value]}")

        def replace(updated: cst.Comparison) -> cst.Comparison:
            function = cst.ensure_type(cst.ensure_type(updated.left, cst.Call).func, cst.Attribute)
            left = function.with_changes(attr=cst.Name("dtype"))
            target = updated.comparisons[0].with_changes(comparator=dtype)
            return updated.with_changes(left=left, comparisons=[target])

        message = f"`{code(node)}` → its dtype; bfloat16 does not count as {TYPES[value]}"
        yield self.edit(node, replace, message, consumes=[node.comparisons[0].comparator])

    def _is_cpu(
        self, node: cst.Comparison, literal: cst.BaseExpression, context: Workspace
    ) -> Edit:
        """Return the edit that asks for anything but the CPU, in the portable style."""
        cpu = context.string("cpu", like=literal)
        left = node.left is literal

        def replace(updated: cst.Comparison) -> cst.Comparison:
            target = updated.comparisons[0]
            asked = target.with_changes(operator=_opposite(target.operator))
            if left:
                return updated.with_changes(left=cpu, comparisons=[asked])
            return updated.with_changes(comparisons=[asked.with_changes(comparator=cpu)])

        message = f"`{code(node)}` → whether it is anything but the CPU"
        return self.edit(node, replace, message, consumes=[literal])

    def _starts(self, node: cst.Call, context: Workspace) -> Edit:
        cpu = context.string("cpu", like=node.args[0].value)
        above = context.parent(node)
        loose = isinstance(
            above, cst.Comparison | cst.ComparisonTarget | cst.UnaryOperation | cst.Attribute
        )

        def replace(updated: cst.Call) -> cst.UnaryOperation:
            bare = updated.with_changes(args=[cst.Arg(cpu)])
            asked = cst.UnaryOperation(cst.Not(), bare)
            if loose:
                return asked.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return asked

        message = f"`{code(node)}` → whether it is anything but the CPU"
        return self.edit(node, replace, message, consumes=node.args)

    def _literal(self, literal: cst.BaseExpression, context: Workspace) -> Edit:
        xla = context.string(context.vocabulary.device_name, like=literal)
        return self.edit(literal, lambda _: xla, f"{code(literal)} → 'xla'", consumes=[literal])


def _enters_cuda(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` decides for a context of CUDA or another one, which is right on a TPU."""
    above = context.parent(node)
    chosen = above.body if isinstance(above, cst.IfExp) and above.test is node else None
    return isinstance(chosen, cst.Call) and context.qualified_name(chosen.func) in CONTEXTS


def _asked_for(node: cst.Comparison | cst.Call) -> str:
    """Return the device or type of CUDA for which a question asks. Empty if it asks for none."""
    sides = [arg.value for arg in node.args] if isinstance(node, cst.Call) else []
    if isinstance(node, cst.Comparison):
        sides = [node.left, *(target.comparator for target in node.comparisons)]
    for side in sides:
        parts = [side]
        if isinstance(side, cst.Tuple | cst.List | cst.Set):
            parts = [element.value for element in side.elements]
        for part in parts:
            text = string_value(part) or ""
            if text == "cuda" or text.startswith(("cuda:", "torch.cuda.")):
                return text
    return ""


def _questions(condition: cst.BaseExpression, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield the questions about the type of the script's device in a condition, in their order."""
    if isinstance(condition, cst.BooleanOperation):
        yield from _questions(condition.left, context)
        yield from _questions(condition.right, context)
    elif isinstance(condition, cst.UnaryOperation):
        yield from _questions(condition.expression, context)
    elif isinstance(condition, cst.Comparison):
        sides = (condition.left, *(target.comparator for target in condition.comparisons))
        if any(_is_device(side, context) for side in sides):
            yield condition
    elif (
        isinstance(condition, cst.Call)
        and isinstance(condition.func, cst.Attribute)
        and _is_device(condition.func.value, context)
    ):
        yield condition


def _is_moved_to(choice: cst.BaseExpression, context: Workspace) -> bool:
    """Whether a choice is the device of a tensor or a module, which another rule edits."""
    arg = context.parent(choice)
    call = context.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    named = arg.keyword.value if isinstance(arg, cst.Arg) and arg.keyword is not None else ""
    typed = (context.qualified_name(call.func) or "").rpartition(".")[2] in OF_TYPES
    return not typed and (named == "device" or is_move(call, context))


def _opposite(operator: cst.BaseCompOp) -> cst.BaseCompOp:
    opposites: dict[type[cst.BaseCompOp], cst.BaseCompOp] = {
        cst.Equal: cst.NotEqual(),
        cst.NotEqual: cst.Equal(),
        cst.In: cst.NotIn(),
        cst.NotIn: cst.In(),
    }
    return opposites[type(operator)]


def _is_device(node: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `node` is the device that the script runs on, or its type; not that of some tensor."""
    if isinstance(node, cst.Call) and code(node.func) == "str" and len(node.args) == 1:
        return _is_device(node.args[0].value, context)
    if isinstance(node, cst.Call):  # made of a setting; the device of a tensor is one already
        return context.qualified_name(node.func) == "torch.device" and bool(node.args)
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    if context.devices.kind(node) in (Kind.CUDA, Kind.XLA):
        return True
    if isinstance(node, cst.Attribute):
        if node.attr.value == "type":
            return _is_device(node.value, context)
        last = code(node.value).split(".")[-1]
        return (last == "self" or last in OPTIONS) and DEVICE_NAME.fullmatch(
            node.attr.value
        ) is not None
    return DEVICE_NAME.fullmatch(node.value) is not None


def _may_hold(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value`, a test for CUDA, may be true on XLA."""
    if code(value) in ("False", "None", "0"):
        return False
    if isinstance(value, cst.Name) and code(value) not in ("True",):
        _, bound = context.bound_to(value)
        if isinstance(bound, cst.BaseExpression):
            return id(bound) not in context.for_cuda and _may_hold(bound, context)
    asked = isinstance(value, cst.Call) and is_asked(value, context)
    return not asked  # torch.cuda.is_available() is False
