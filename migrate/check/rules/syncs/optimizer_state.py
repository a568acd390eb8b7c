"""A number that an optimizer reads is on the device: its step count, or the learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import OPTIMIZER_CLASS
from migrate.check.common import option, truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import device_argument
from migrate.reading.values.parameters import is_in_optimizer, value_of
from migrate.syntax.tree import keyword, last_part, nodes, nodes_of, string_value

# Optimizers without a step count in their state.
WITHOUT_STEP = frozenset({"torch.optim.SGD", "torch.optim.LBFGS"})
SIZES = frozenset({"dim", "ndim", "numel", "shape", "size"})
PARTS = frozenset({"items", "values"})
MESSAGE = (
    "moves the optimizer's `step` to the device with the rest of its state: at every step the optimizer "
    'reads it there, once a parameter; leave it on the host (`if key != "step"`), or remove the loop: '
    "load_state_dict of the optimizer puts the rest where the parameters are"
)

RATE = (
    "a learning rate on the device: the optimizer, or the scheduler that changes it, reads it at every step; "
    "a Python number, or a tensor on the host, is an input of the graph and is not compiled anew"
)


class OptimizerState(Hazard):
    """A number that an optimizer reads is on the device: its step count, or the learning rate.

    **Why.** Adam and most other optimizers keep a tensor `step` in the state of each parameter, on the host,
    and read it at every step. A loop that moves all tensors of the state to the device moves it too: then
    the host waits for the device once for each parameter, at every step. A learning rate that is a tensor
    of the device is read as well: by the optimizer (unless it is `capturable`), and by `step` of the
    scheduler, which fills in the next one.

    **What to do.** Leave the loop out: `optimizer.load_state_dict` puts the moments where the parameters are,
    and `step` stays on the host. Or skip it: `if key != "step"`. Make the learning rate a Python number, or
    a tensor on the host: it is an input of the graph, and no value of it is compiled.

    Source: torch 2.9 (`torch.optim.Optimizer._process_value_according_to_param_policy`), torch_xla 2.9
    (measured: `LambdaLR` and most other schedulers read such a rate at every step, and so do SGD and AdamW).
    """

    code = "XLA209"
    name = "optimizer-state"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.Assign, cst.DictElement)
    words = "state|lr|optim"
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


            def optimizers(model, device):
                rate = torch.tensor(0.1, device="cuda")
                one = torch.optim.SGD(model.parameters(), lr=rate)  # XLA209
                groups = [{"params": model.parameters(), "lr": rate}]  # XLA209
                other = torch.optim.AdamW(groups, lr=torch.tensor(0.1))
                for group in other.param_groups:
                    group["lr"] = torch.full((), 0.1).cuda()  # XLA209
                return one, other


            class Own(torch.optim.Optimizer):
                def __init__(self, params, lr, device):
                    super().__init__(params, dict(lr=lr))
                    self.param_groups[0]["lr"] = torch.empty((), device=device).fill_(lr)  # XLA209

                def hold(self, index, name, device):
                    group = self.param_groups[index]
                    group[name] = torch.empty((), device=device).fill_(group[name])  # XLA209
            """
        ),
        example(
            """
            import torch


            def optimizers(model, log, device):
                one = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
                rate = torch.tensor(0.1, device="cuda")
                two = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
                log["lr"] = torch.tensor(0.1, device="cuda")
                for group in one.param_groups:
                    group["lr"] = group["lr"] * 0.5
                    group["momentum"] = torch.tensor(0.9, device="cuda")
                for name in log:
                    log[name] = torch.tensor(0.1, device="cuda")
                return one, two
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
        """Yield a move of a value that a loop takes out of the state, or a learning rate on the device."""
        rate = _rate(node, facts)
        if rate is not None and facts.values.on_device(rate):
            yield self.hit(rate, RATE)
        if not isinstance(node, cst.Call):
            return
        if not _moves(node, facts) or _has_no_step(facts):
            return
        moved = cst.ensure_type(node.func, cst.Attribute).value
        if isinstance(moved, cst.Attribute) and moved.attr.value == "data":
            moved = moved.value
        levels = _levels(moved, facts) if isinstance(moved, cst.Name) else _taken(moved, facts, 0)
        if levels < 2 or _leaves_step(node, facts):
            return
        yield self.hit(node, MESSAGE)


def _rate(node: cst.CSTNode, facts: Facts) -> cst.BaseExpression | None:
    """Return the learning rate that `node` gives an optimizer, or one of its groups."""
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
        named = any(isinstance(t, cst.Subscript) and _is_rate_of_group(t, facts) for t in targets)
        return node.value if named else None
    if isinstance(node, cst.DictElement):
        display = facts.context.parent(node)
        elements = display.elements if isinstance(display, cst.Dict) else ()
        keys = [string_value(e.key) for e in elements if isinstance(e, cst.DictElement)]
        return node.value if string_value(node.key) == "lr" and "params" in keys else None
    assert isinstance(node, cst.Call)
    is_torch = _is_of_torch(facts.names.of(node.func) or "")
    capturable = option(node, "capturable", facts)
    if capturable is not None and truth(capturable, facts):
        return None
    rate = option(node, "lr", facts)
    if rate is None and is_torch and len(node.args) > 1 and _is_positional(node.args[1]):
        rate = node.args[1].value
    if rate is None:
        return None
    is_group = last_part(node.func) == "dict" and (
        keyword(node, "params") is not None or is_in_optimizer(node, facts.context)
    )
    is_optimizer = is_torch or is_group or OPTIMIZER_CLASS.search(last_part(node.func))
    return rate if is_optimizer else None


def _is_of_torch(name: str) -> bool:
    """Whether `name` is of an optimizer of torch, and of no scheduler."""
    return name.startswith("torch.optim.") and "lr_" not in name


def _is_positional(arg: cst.Arg) -> bool:
    return arg.keyword is None and not arg.star


def _is_rate_of_group(target: cst.Subscript, facts: Facts) -> bool:
    """Whether `target` is `group["lr"]` of an optimizer, or `group[name]`, which may be that."""
    key = target.slice[0].slice
    if not isinstance(key, cst.Index) or string_value(key.value) not in ("lr", None):
        return False
    return facts.values.is_group(target.value)


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
    optimizers = {name for name in facts.called if _is_of_torch(name)}
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
