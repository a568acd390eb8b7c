"""`.cpu()` and `.numpy()` in the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import is_returned_elsewhere, placed
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.parameters import holds_parameters
from migrate.reading.values.values import device_argument
from migrate.syntax.tree import bind, code, keyword

# Averages of weights of timm that copy each weight to their `device`: the position of that argument.
AVERAGES = {
    f"timm.utils.{module}{name}": position
    for module in ("", "model_ema.")
    for name, position in (("ModelEma", 2), ("ModelEmaV2", 2), ("ModelEmaV3", 7))
}
# Attributes and methods with the same values as the tensor.
SAME = frozenset({"clone", "contiguous", "data", "detach", "double", "float"})
MEND = (
    "one read, and one program, for each weight: keep the average on the device and fetch it for a save, or "
    "update it every N steps"
)


class ToCpu(Hazard):
    """A tensor is fetched inside the step: `.cpu()`, `.numpy()`, `.to('cpu')`.

    **Why.** The graph is cut, the host waits for the device and copies. An average of the weights that lies
    on the CPU (`ModelEma(model, device="cpu")` of timm, or a loop over the parameters) does so once for each
    weight, at every step.

    **What to do.** Keep the tensor and fetch it after the step; in evaluation, fetch once a batch or, better,
    once at the end. Keep the average of the weights on the device, and fetch it where it is saved.

    Source: torch_xla 2.9, timm 1.0 (measured: `ModelEmaV2(device="cpu")` runs a program for each weight).
    """

    code = "XLA203"
    name = "cpu-in-step"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            class Metric(torch.nn.Module):
                def forward(self, x):
                    return x.mean().detach().cpu()  # XLA203


            def train(model, loader, optimizer):
                for x, y in loader:
                    out = model(x.cuda())
                    seen = out.to("cpu")  # XLA203
                    out.mean().backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            from timm.utils import ModelEmaV2


            def train(model, loader, optimizer, shadow):
                model.to("xla")
                average = ModelEmaV2(model, device="cpu")  # XLA203
                for x, y in loader:
                    model(x.to("xla")).mean().backward()
                    optimizer.step()
                    average.update(model)
                    with torch.no_grad():
                        for name, weight in model.named_parameters():
                            shadow[name].mul_(0.9).add_(weight.detach().cpu(), alpha=0.1)  # XLA203
            """
        ),
        example(
            """
            import torch
            from timm.utils import ModelEmaV2


            def train(model, loader, optimizer):
                model.to("xla")
                average = ModelEmaV2(model)
                for x, y in loader:
                    model(x.to("xla")).mean().backward()
                    optimizer.step()
                    average.update(model)
                return {name: weight.cpu() for name, weight in average.module.named_parameters()}


            @torch.no_grad()
            def evaluate(model, loader):
                rows = []
                for x, y in loader:
                    rows.append(model(x.cuda()).cpu().numpy())
                return rows


            class Metric(torch.nn.Module):
                def forward(self, x):
                    if not self.training:
                        self.seen = x.mean().cpu()
                    return x.mean()


            def save(model):
                torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "model.pt")
            """
        ),
    )
    mended = example(
        """
        import torch


        class Metric(torch.nn.Module):
            def forward(self, x):
                return x.mean().detach()


        def train(model, loader, optimizer):
            for step, (x, y) in enumerate(loader):
                out = model(x.cuda())
                out.mean().backward()
                optimizer.step()
                if step % 100 == 0:
                    seen = out.to("cpu")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one fetch of a tensor, or the creation of an average that fetches all weights."""
        assert isinstance(node, cst.Call)
        position = AVERAGES.get(facts.names.of(node.func) or "")
        if position is not None:
            yield from self._average(node, position, facts)
            return
        name = method(node)
        device = device_argument(node) if name == "to" else None
        to_cpu = device is not None and (
            (facts.values.device(device.value) is Kind.CPU and not _is_chosen(device.value, facts))
            or (_is_weight(receiver(node), facts) and _names_cpu(device.value, facts))
        )
        if not (name in ("cpu", "numpy") or to_cpu):
            return
        fetched = receiver(node)
        if not facts.values.on_device(fetched) and not is_returned_elsewhere(fetched, facts):
            return
        what = f".{name}({'...' if to_cpu else ''})"
        if not _is_weight(fetched, facts):
            yield from placed(self, node, what, facts)
        elif any(placed(self, node, what, facts)) or _in_every_step(node, facts):
            yield self.hit(node, f"{what} of a weight, in a loop over them, at every step: {MEND}")

    def _average(self, call: cst.Call, position: int, facts: Facts) -> Iterable[Hit]:
        """Yield timm's average of the weights, if it is, or may be, on the CPU."""
        arg = keyword(call, "device")
        positional = [part for part in call.args if part.keyword is None and not part.star]
        if arg is None and len(positional) > position:
            arg = positional[position]
        if arg is None or not _names_cpu(arg.value, facts):
            return
        sure = facts.values.device(arg.value) is Kind.CPU
        where = "on the CPU" if sure else f"where `{code(arg.value)}` is the CPU"
        yield self.hit(call, f"an average of the weights {where}: each update is {MEND}")


def _is_chosen(device: cst.BaseExpression, facts: Facts, depth: int = 4) -> bool:
    """Whether the CPU is only the default of a parameter, and no call in the script leaves that out.

    A call may hand on a parameter of its own function, of which the same holds.
    """
    parameter = facts.bindings.parameter(device) if isinstance(device, cst.Name) else None
    if parameter is None:
        return False
    function = parameter[0]
    devices = [*facts.bindings.passed(function, code(device))]
    calls = facts.context.callers.get(id(function), ())
    return len(calls) == len(devices) and not any(
        _names_cpu(passed, facts) and not (depth and _is_chosen(passed, facts, depth - 1))
        for passed in devices
    )


def _in_every_step(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether a function that the training loop calls at every step, beside its step, runs `node`."""
    return facts.guards.around(node) is None and facts.steps.beside.every_step(node)


def _names_cpu(value: cst.BaseExpression, facts: Facts, depth: int = 4) -> bool:
    """Whether a device is, or by one of the script's choices may be, the CPU."""
    if facts.values.device(value) is Kind.CPU:
        return True
    if depth and isinstance(value, cst.IfExp):
        return any(_names_cpu(part, facts, depth - 1) for part in (value.body, value.orelse))
    if depth and isinstance(value, cst.Name | cst.Attribute):
        values = list(facts.values.given_to(value))
        parameter = facts.bindings.parameter(value) if isinstance(value, cst.Name) else None
        if parameter is not None:
            values += facts.bindings.passed(parameter[0], code(value))
            values += _constructed(parameter[0], code(value), facts)
        return any(_names_cpu(part, facts, depth - 1) for part in values)
    return False


def _constructed(
    function: cst.FunctionDef, name: str, facts: Facts
) -> Iterator[cst.BaseExpression]:
    """Yield the values that the script passes for the parameter `name` when it creates objects of a class.

    Args:
        function: the `__init__` of the class; of another function nothing is yielded.
        name: the parameter.
        facts: the script.
    """
    if function.name.value != "__init__":
        return
    names = [parameter.name.value for parameter in function.params.params][1:]
    for call in facts.context.callers.get(id(function), ()):
        bound = bind(call, names)
        if bound is not None and name in bound:
            yield bound[name].value


def _is_weight(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is the variable of a loop over all parameters, or over the state of a model."""
    while isinstance(value, cst.Call | cst.Attribute):
        func = value.func if isinstance(value, cst.Call) else value
        if not isinstance(func, cst.Attribute) or func.attr.value not in SAME:
            return False
        value = func.value
    if not isinstance(value, cst.Name):
        return False
    return any(
        binding.loop is not None
        and (
            holds_parameters(binding.loop.iter, facts.context)
            or any(
                method(call) == "state_dict" for call in facts.below(binding.loop.iter, cst.Call)
            )
        )
        for binding in facts.bindings.reaching(value)
    )
