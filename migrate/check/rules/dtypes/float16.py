"""float16."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import is_a_type, method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.model.calls.kind import PLACED, Kind
from migrate.reading.facts import Facts
from migrate.reading.values.region_arguments import is_type_of_options
from migrate.reading.values.saved import is_save
from migrate.syntax.tree import base_name, nodes_of

# Names and dictionaries by which a type goes to its region, at most.
DEEPEST = 4
FLOAT16 = "a TPU computes in bfloat16, float16 needs a loss scaler: bfloat16, without one"
BY_SHIMS = frozenset({"shims.autocast", "shims.autocast_dtype"})
NAMES = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})


class Float16(Hazard):
    """float16 instead of bfloat16.

    **Why.** The matrix unit of a TPU works in bfloat16; float16 is converted, has too small a range without
    a loss scaler, and torch_xla has none in 2.9.

    **What to do.** `torch.bfloat16`, without a scaler.
    """

    code = "XLA502"
    name = "float16"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = (
        "float16 is accepted, and its gradient scaler raises: `torch.bfloat16`, without one."
    )
    nodes = (cst.Name, cst.Attribute, cst.Call)
    words = "float16|[hH]alf"
    of_names = True
    examples = (
        example(
            """
            import torch


            def load(x):
                model = torch.nn.Linear(3, 3)
                model.half()  # XLA502
                print(x.to(torch.float16).cpu().numpy())  # XLA502 info
                model.half().float()  # XLA502 info
                if x.type() == "torch.cuda.HalfTensor":
                    model.half()  # XLA502 info
                return model(x.to("cuda", dtype=torch.float16))  # XLA502
            """
        ),
        example(
            """
            import shims
            import torch


            def middle(x, half):
                if x.dtype == torch.float16:
                    x = x.float()
                half(x)
                return x.to(torch.bfloat16), {"fp16": torch.float16}


            def region(model, x):
                kind = torch.float16 if model.training else torch.float32
                options = dict(dtype=torch.half if model.training else kind, enabled=True)
                with shims.autocast(dtype=torch.float16), shims.autocast(dtype=kind):
                    x = model(x)
                with shims.autocast(**options):
                    return model(x)
            """
        ),
        example(
            """
            import torch
            from safetensors.torch import save_file


            def save(model, path, dtype=torch.float16):  # XLA502 info
                save_file({key: value.to(dtype) for key, value in model.state_dict().items()}, path)


            def run(model, x, dtype=torch.float16):  # XLA502
                return model(x.to(dtype))
            """
        ),
    )
    mended = example(
        """
        import torch


        def load(x):
            model = torch.nn.Linear(3, 3)
            model.to(torch.bfloat16)
            return model(x.to("cuda", dtype=torch.bfloat16))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one dtype or conversion; information where it is for a file or another runtime."""
        what = self._what(node, facts)
        if what is None:
            return
        elsewhere = (
            facts.exports
            or _is_fetched(node, facts)
            or _is_of_save(node, facts)
            or only_with_cuda(node, facts)
        )
        severity = Severity.INFO if elsewhere else self.severity
        yield self.hit(node, f"{what}: {FLOAT16}", severity)

    def _what(self, node: cst.CSTNode, facts: Facts) -> str | None:
        if isinstance(node, cst.Call):
            if method(node) != "half" or node.args:
                return None
            return ".half()" if _is_torchs(node, facts) else None
        name = facts.names.of(node)
        above = facts.context.parent(node)
        compared = cst.Comparison | cst.ComparisonTarget | cst.BaseDictElement | cst.Element
        if name not in NAMES or isinstance(above, compared):
            return None
        if isinstance(above, cst.Arg):
            call = facts.context.parent(above)
            asserts = method(call).startswith("assert") if call is not None else False
            if asserts or is_a_type(node, facts) or _is_cudas_own(call, facts):
                return None
        return None if _goes_to_shims(node, facts) else name


def _is_torchs(call: cst.Call, facts: Facts) -> bool:
    """Whether the method `half` that is called is that of a tensor or a module, or may be."""
    kind = facts.values.kind(receiver(call))
    if kind in PLACED:
        return True
    context = facts.context
    unknown = kind is Kind.UNKNOWN and facts.names.of(call.func) is None
    return unknown and not context.run_by(call) and bool(context.references("torch"))


def _goes_to_shims(node: cst.CSTNode, facts: Facts, depth: int = 0) -> bool:
    """Whether only shims gets a type: in a choice of types, in a dictionary, or by a name."""
    context = facts.context
    above = context.parent(node)
    while isinstance(above, cst.IfExp) and above.test is not node:
        node, above = above, context.parent(above)
    if above is not None and is_type_of_options(above, context):
        node = context.parent(above) or above
        above = context.parent(node)
    if isinstance(above, cst.Arg):
        return _is_cudas_own(context.parent(above), facts)
    target = above.targets[0].target if isinstance(above, cst.Assign) else None
    if not isinstance(target, cst.Name) or depth == DEEPEST:
        return False
    uses = [
        use
        for use in context.references(target.value)
        if not isinstance(context.parent(use), cst.AssignTarget)
    ]
    return bool(uses) and all(_goes_to_shims(use, facts, depth + 1) for use in uses)


def _is_cudas_own(call: cst.CSTNode | None, facts: Facts) -> bool:
    """Whether a type is given to shims, which makes bfloat16 of it on XLA."""
    if not isinstance(call, cst.Call):
        return False
    name = facts.names.of(call.func)
    if name == "functools.partial" and call.args:
        name = facts.names.of(call.args[0].value)
    return name in BY_SHIMS


def _is_of_save(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is the default of a parameter of a function that saves and does not train.

    Or it is put into what a function saves: `weights[key] = value.half()`, `torch.save(weights, path)`.
    """
    if isinstance(node, cst.Call):
        return _is_put_into_saved(node, facts)
    parameter = facts.context.parent(node)
    if not isinstance(parameter, cst.Param) or parameter.default is not node:
        return False
    function = next(
        (
            above
            for above in facts.context.ancestors(parameter)
            if isinstance(above, cst.FunctionDef)
        ),
        None,
    )
    if function is None or facts.context.effects.of(function.body):
        return False
    calls = nodes_of(function.body, cst.Call)
    return any(is_save(call, facts.context, also_xla=True) for call in calls)


def _is_put_into_saved(node: cst.Call, facts: Facts) -> bool:
    """Whether `node` is put into a dictionary or a list that the function around it saves."""
    function = facts.context.function_around(node)
    if not isinstance(function, cst.FunctionDef) or facts.context.effects.of(function.body):
        return False
    held = False
    names: set[str | None] = set()
    for above in facts.context.ancestors(node):
        held = held or isinstance(above, cst.BaseElement | cst.BaseDictElement | cst.BaseComp)
        if isinstance(above, cst.Assign):
            targets = [target.target for target in above.targets]
            names = {base_name(t) for t in targets if held or isinstance(t, cst.Subscript)}
            break
        if isinstance(above, cst.BaseStatement):
            return False
    return any(
        isinstance(call.args[0].value, cst.Name) and call.args[0].value.value in names
        for call in facts.below(function.body, cst.Call)
        if call.args and is_save(call, facts.context, also_xla=True)
    )


def _is_fetched(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the converted value is sent to the host at once, or is only rounded.

    `x.to(torch.float16).cpu().numpy()`, `model.half().float()`.
    """
    back = facts.context.parent(node)
    if (
        isinstance(node, cst.Call)
        and isinstance(back, cst.Attribute)
        and back.attr.value == "float"
    ):
        return True
    for above in (node, *facts.context.within_statement(node)):
        if isinstance(above, cst.Attribute) and above.attr.value in ("cpu", "numpy"):
            return True
    return False
