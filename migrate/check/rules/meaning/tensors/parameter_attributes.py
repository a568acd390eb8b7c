"""Attributes and hooks of a parameter, which the move to the device loses."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.devices import is_move
from migrate.reading.values.parameters import holds_parameters, is_in_optimizer, value_of
from migrate.syntax.tree import bind, code, string_value

# Attributes of every tensor: to set them changes the parameter itself.
OF_TENSORS = frozenset({"data", "grad", "names", "requires_grad"})
HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
MAKERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
OF_LAYERS = frozenset({"bias", "weight"})
DEEPEST = 4
MEND = "set it after the move, or use the parameter's name"
MEND_HOOK = "register it after the move"


class ParameterAttributes(Hazard):
    """An attribute or a hook of a parameter is set before the model moves.

    **Why.** `.to("xla")` makes a new parameter of each one, without the attributes and the hooks that Python
    code gave the old one; also where
    `torch.__future__.set_swap_module_params_on_conversion(True)` keeps the object. (With CUDA both stay.) So
    `getattr(p, "_no_weight_decay", False)` is False for all parameters after the move, and the groups of the
    optimizer are other ones, without an error.

    **What to do.** Set the attribute or register the hook after the move, or go by the names of the
    parameters: `{name for name, p in model.named_parameters() if …}`, collected before the move.

    **Left alone.** What is set in an optimizer, in a step of training or below the move in the same function
    or in its callers. An attribute that no file of the project reads, where the whole project is checked; of
    a script alone it is information, as another file may read it.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    code = "XLA868"
    name = "parameter-attributes"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = "The move makes new parameters too (measured)."
    nodes = (cst.Assign, cst.AnnAssign, cst.Call)
    words = (
        r"Parameter\(|register_parameter|\.(?:weight|bias)\.\w+\s*=[^=]|setattr\(|register_\w*hook\("
        r"|parameters\(\w*\)[^\n]*:[ \t]*(?:#[^\n]*)?\n"
    )
    examples = (
        example(
            """
            import torch


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(4, 4)
                    self.scale = torch.nn.Parameter(torch.ones(4))
                    self.scale._no_weight_decay = True  # XLA868
                    self.layer.weight.tag = "first"  # XLA868
                    self.scale.requires_grad = False
                    self.layer.bias.data = torch.zeros(4)
                    self.layer.bias.note = "read by no line here"  # XLA868 info


            def groups(net):
                plain = [p for p in net.parameters() if getattr(p, "_no_weight_decay", False)]
                return plain, [p for p in net.parameters() if p.tag != "first"]
            """
        ),
        example(
            """
            import torch


            def main(net, keep):
                for name, p in net.named_parameters():
                    setattr(p, "decays", "norm" not in name)  # XLA868
                    p.register_post_accumulate_grad_hook(keep)  # XLA868
                net.to("xla")
                for p in net.parameters():
                    p.decays = True
                    p.grad = None
                    p.register_hook(keep)
                return [p for p in net.parameters() if p.decays]
            """
        ),
        example(
            """
            import torch


            class Meter:
                def __init__(self, loss):
                    self.scale = torch.ones(4)
                    self.scale.tag = "loss"
                    self.total = loss
                    self.total.tag = "loss"


            def mark(net):
                for p in net.parameters():
                    p.tag = "first"


            def main(Net):
                net = Net().to("xla")
                mark(net)
            """
        ),
    )
    mended = example(
        """
        import torch


        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(4))


        def groups(net):
            plain = [p for name, p in net.named_parameters() if name == "scale"]
            decayed = [p for name, p in net.named_parameters() if name != "scale"]
            return [{"params": decayed, "weight_decay": 0.1}, {"params": plain}]
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the attributes that an assignment sets on a parameter, or the hook that a call registers."""
        if "torch" not in facts.names.roots:
            return
        if isinstance(node, cst.Call):
            yield from self._called(node, facts)
            return
        assert isinstance(node, cst.Assign | cst.AnnAssign)
        set_ = [node] if isinstance(node, cst.AnnAssign) else node.targets
        for target in (target.target for target in set_):
            if isinstance(target, cst.Attribute) and self._is_lost(
                target.value, target.attr.value, facts
            ):
                message = f"the move to the device loses the attribute {code(target)}"
                yield from self._attribute(node, message, target.attr.value, facts)

    def _called(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in HOOKS:
            if self._is_lost(func.value, "", facts):
                message = (
                    f"the move to the device loses the hook of {code(func.value)}: {MEND_HOOK}"
                )
                yield self.hit(call, message)
        elif isinstance(func, cst.Name) and func.value == "setattr" and len(call.args) == 3:
            of, key = call.args[0].value, call.args[1].value
            if self._is_lost(of, string_value(key) or "", facts):
                message = f"the move to the device loses the attribute {code(key)} of {code(of)}"
                yield from self._attribute(call, message, string_value(key), facts)

    def _attribute(
        self, node: cst.CSTNode, lost: str, name: str | None, facts: Facts
    ) -> Iterable[Hit]:
        """Yield the attribute `name` that is lost, unless nothing reads it; None is some attribute."""
        calls = facts.context.calls
        if name is None or name in calls.attributes_read:
            yield self.hit(node, f"{lost}: {MEND}")
        elif not calls.whole:
            yield self.hit(node, f"{lost}, which no file seen here reads: {MEND}", Severity.INFO)

    def _is_lost(self, owner: cst.BaseExpression, attribute: str, facts: Facts) -> bool:
        if attribute in OF_TENSORS or not _is_parameter(owner, facts):
            return False
        context = facts.context
        if is_in_optimizer(owner, context) or facts.steps.inside(owner):
            return False
        loops = list(_loops(owner, facts))
        if loops:
            marked = context.calls.optimizers.marked
            return any(
                context.place(call) in marked
                for loop in loops
                for call in facts.below(loop.iter, cst.Call)
            )
        return not _is_after_move(owner, _models(owner, facts), facts)


def _is_parameter(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is a parameter of a module by what made it, or is the weight of a layer."""
    if depth > DEEPEST:
        return False
    if isinstance(node, cst.Call):
        return facts.names.of(node.func) in MAKERS
    if isinstance(node, cst.Attribute):
        values = facts.values.given_to(node)
        if values:
            return any(_is_parameter(value, facts, depth + 1) for value in values)
        part = isinstance(node.value, cst.Attribute | cst.Subscript) or (
            isinstance(node.value, cst.Name)
            and node.value.value != "self"
            and facts.values.kind(node.value) is Kind.MODEL
        )
        return node.attr.value in OF_LAYERS and part and "config" not in code(node)
    if not isinstance(node, cst.Name):
        return False
    parameter = facts.bindings.parameter(node)
    if parameter is not None:
        passed = facts.bindings.passed(parameter[0], node.value)
        return any(_is_parameter(value, facts, depth + 1) for value in passed)
    for assignment in facts.bindings.reaching(node):
        if assignment.loop is not None and holds_parameters(assignment.loop.iter, facts.context):
            return True
        value = assignment.value
        if assignment.loop is None and value is not None and _is_parameter(value, facts, depth + 1):
            return True
    return False


def _loops(owner: cst.BaseExpression, facts: Facts) -> Iterable[cst.For]:
    """Yield the loops over parameters whose variable is `owner`."""
    for assignment in facts.bindings.reaching(owner) if isinstance(owner, cst.Name) else ():
        if assignment.loop is not None:
            yield assignment.loop


def _models(node: cst.BaseExpression, facts: Facts) -> set[str]:
    """Return the first names of what the parameter `node` belongs to: `net` of `net.head.weight`."""
    names = {_root(node)}
    if isinstance(node, cst.Name):
        for binding in facts.context.bindings(node):
            value = value_of(binding.node, facts.context)
            if value is not None:
                names |= {_root(call.func) for call in facts.below(value, cst.Call)}
    return names - {"", "self"}


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute | cst.Subscript | cst.Call):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_after_move(node: cst.CSTNode, models: set[str], facts: Facts, depth: int = 0) -> bool:
    """Whether the model is on the device where `node` stands: moved above it, or before its function runs."""
    context = facts.context
    around = context.function_around(node)
    at = context.position(node).line
    for call in facts.calls:
        if context.function_around(call) is not around or context.position(call).line >= at:
            continue
        if not is_move(call, context):
            continue
        statement = context.statement_around(call)
        bound = {code(t.target) for a in _assigns(statement) for t in a.targets}
        if _root(call.func) in models or bound & models:
            return True
    if around is None or depth > DEEPEST:
        return False
    names = [parameter.name.value for parameter in around.params.params]
    passed = [name for name in names if name in models]
    callers = facts.bindings.callers(around) if passed else []
    if passed and not callers:
        return True  # nothing shows that the model moves later
    return bool(callers) and all(
        _is_after_move(call, _passed(call, names, passed, before), facts, depth + 1)
        for call, before in callers
    )


def _assigns(statement: cst.CSTNode) -> list[cst.Assign]:
    lines = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    return [line for line in lines if isinstance(line, cst.Assign)]


def _passed(call: cst.Call, names: list[str], wanted: list[str], before: int) -> set[str]:
    """Return the first names of what `call` passes for the parameters `wanted`."""
    bound = bind(call, names[(names[:1] == ["self"]) + before :]) or {}
    return {_root(bound[name].value) for name in wanted if name in bound} - {""}
