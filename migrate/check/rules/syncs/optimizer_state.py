"""The step count of an optimizer is moved to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import device_argument
from migrate.reading.values.parameters import value_of
from migrate.syntax.tree import nodes, nodes_of, string_value

# Optimizers without a step count in their state.
WITHOUT_STEP = frozenset({"torch.optim.SGD", "torch.optim.LBFGS"})
SIZES = frozenset({"dim", "ndim", "numel", "shape", "size"})
PARTS = frozenset({"items", "values"})
MESSAGE = (
    "moves the optimizer's `step` to the device with the rest of its state: at every step the optimizer "
    'reads it there, once a parameter; leave it on the host (`if key != "step"`), or remove the loop: '
    "load_state_dict of the optimizer puts the rest where the parameters are"
)


class OptimizerState(Hazard):
    """The step count of an optimizer is moved to the device.

    **Why.** Adam and most other optimizers keep a tensor `step` in the state of each parameter, on the host,
    and read it at every step. A loop that moves all tensors of the state to the device moves it too: then
    the host waits for the device once for each parameter, at every step.

    **What to do.** Leave the loop out: `optimizer.load_state_dict` puts the moments where the parameters are,
    and `step` stays on the host. Or skip it: `if key != "step"`.

    Source: torch 2.9 (`torch.optim.Optimizer._process_value_according_to_param_policy`), torch_xla 2.9.
    """

    code = "XLA209"
    name = "optimizer-state"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "state"
    examples = (
        example(
            """
            import torch


            def resume(optimizer, saved, device):
                optimizer.load_state_dict(saved)
                for state in optimizer.state.values():
                    for k, v in state.items():
                        if torch.is_tensor(v):
                            state[k] = v.to(device)  # XLA209
                for p in optimizer.state:
                    entry = optimizer.state[p]
                    optimizer.state[p] = {k: v.cuda() for k, v in entry.items()}  # XLA209
                for slots in saved["state"].values():
                    for slot in slots.values():
                        slot.data = slot.data.to(device)  # XLA209
            """
        ),
        example(
            """
            import torch


            def resume(optimizer, saved, device):
                for state in optimizer.state.values():
                    for k, v in state.items():
                        if isinstance(v, torch.Tensor) and k != "step":
                            state[k] = v.to(device)
                for state in optimizer.state.values():
                    for k, v in state.items():
                        if k == "step":
                            continue
                        state[k] = v.to(device)
                for state in optimizer.state.values():
                    for k, v in state.items():
                        state[k] = v.cpu().to(torch.float32)


            def reset(self, device):
                for k, v in self.state.items():
                    self.state[k] = v.to(device)
            """
        ),
        example(
            """
            import torch


            def resume(model, saved, device):
                optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
                optimizer.load_state_dict(saved)
                for state in optimizer.state.values():
                    for k, v in state.items():
                        state[k] = v.to(device)
            """
        ),
    )
    mended = example(
        """
        def resume(optimizer, saved):
            optimizer.load_state_dict(saved)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one move of a value that a loop takes out of the state."""
        assert isinstance(node, cst.Call)
        if not _moves(node, facts) or _has_no_step(facts):
            return
        moved = cst.ensure_type(node.func, cst.Attribute).value
        if isinstance(moved, cst.Attribute) and moved.attr.value == "data":
            moved = moved.value
        levels = _levels(moved, facts) if isinstance(moved, cst.Name) else _taken(moved, facts, 0)
        if levels < 2 or _leaves_step(node, facts):
            return
        yield self.hit(node, MESSAGE)


def _moves(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is `v.cuda()`, or `v.to(…)` with a possible device."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("cuda", "to"):
        return False
    if call.func.attr.value == "cuda":
        return True
    device = device_argument(call)
    if device is None or facts.context.values.is_surely_cpu(device.value):
        return False
    return not (facts.names.of(device.value) or "").startswith("torch.")


def _has_no_step(facts: Facts) -> bool:
    """Whether all optimizers of the script have no step count."""
    optimizers = {
        name for name in facts.called if name.startswith("torch.optim.") and "lr_" not in name
    }
    return bool(optimizers) and optimizers <= WITHOUT_STEP


def _levels(name: cst.Name, facts: Facts, depth: int = 0) -> int:
    """Return the number of levels at which `name` was taken out of the state. 0: it was not."""
    if depth > 4:
        return 0
    levels = [0]
    for binding in facts.context.bindings(name):
        value = value_of(binding.node, facts.context)
        if value is not None:
            levels.append(_taken(value, facts, depth))
    return max(levels)


def _taken(value: cst.BaseExpression, facts: Facts, depth: int) -> int:
    """Return the same for an expression that takes values out: `.values()`, `.items()`, `[parameter]`."""
    source: cst.BaseExpression
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Name) and value.args:  # list(…), enumerate(…)
            return _taken(value.args[0].value, facts, depth)
        if not isinstance(value.func, cst.Attribute) or value.func.attr.value not in PARTS:
            return 0
        source = value.func.value
    elif isinstance(value, cst.Subscript):
        source = value.value
    else:
        return 0
    if _is_state(source):
        return 1
    if isinstance(source, cst.Name):
        levels = _levels(source, facts, depth + 1)
    else:
        levels = _taken(source, facts, depth + 1)
    return levels + 1 if levels else 0


def _is_state(node: cst.BaseExpression) -> bool:
    """Whether `node` is `optimizer.state` or `saved["state"]`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value == "state"
    key = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    return isinstance(key, cst.Index) and string_value(key.value) == "state"


def _leaves_step(node: cst.Call, facts: Facts) -> bool:
    """Whether a test around the move, or before it in its loop, selects by the key or the size."""
    return any(_chooses(part) for test in _tests(node, facts) for part in nodes(test))


def _chooses(part: cst.CSTNode) -> bool:
    if isinstance(part, cst.Attribute):
        return part.attr.value in SIZES
    return isinstance(part, cst.Comparison) and any(nodes_of(part, cst.SimpleString))


def _tests(node: cst.Call, facts: Facts) -> Iterator[cst.BaseExpression]:
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp | cst.CompIf):
            yield above.test
        elif isinstance(above, cst.BaseComp):
            yield from (condition.test for condition in above.for_in.ifs)
        elif isinstance(above, cst.For):
            yield from (
                statement.test for statement in above.body.body if isinstance(statement, cst.If)
            )
        elif isinstance(above, cst.FunctionDef | cst.ClassDef):
            return
