"""Python control flow that depends on a tensor's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import ASK_TENSORS
from migrate.check.asked_type import is_no_tensor
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import CHECKS, is_read, reads_device
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How
from migrate.reading.steps.evaluating import evaluating_loop
from migrate.reading.steps.in_step import When
from migrate.reading.steps.loops import Loop
from migrate.reading.values.values import is_forward
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, keyword, nodes_of

# What is a tensor where it is asked of tensors: `bad = torch.isnan(loss).any()`, `x > 3`.
ANSWERS = cst.Call | cst.Comparison
# Functions of Python that compare tensors, and what computes the same on the device.
CHOICES = {
    "min": "torch.minimum, torch.clamp(…, max=…) or torch.stack(…).min()",
    "max": "torch.maximum, torch.clamp(…, min=…) or torch.stack(…).max()",
    "sorted": "torch.stack(…).sort()",
}


class ControlFlow(Hazard):
    """Python control flow depends on the value of a tensor.

    **Why.** Python must know the value: the graph is cut, the host waits for the device at every step, and
    both branches become graphs of their own. Replicas that take different branches hang at the next
    collective. A loop that samples, generates or evaluates waits so in each of its turns.

    **What to do.** `torch.where(condition, a, b)` on the device. A check of the loss (`isfinite`) goes after
    the step, every N steps.
    """

    code = "XLA110"
    name = "control-flow"
    severity = Severity.WARNING
    nodes = (cst.If, cst.While, cst.Assert, cst.IfExp, cst.Call)
    examples = (
        example(
            """
            import torch


            class Range:
                def __init__(self, device):
                    self.largest = torch.zeros(1, device=device)

                def see(self, x):
                    self.largest = max(self.largest, x.abs().max())  # XLA110 info


            def train(model, loader, optimizer):
                seen, best, losses = Range("cuda"), torch.zeros((), device="cuda"), []
                for x in loader:
                    x = x.cuda()
                    loss = model(x).mean()
                    loss.backward()
                    optimizer.step()
                    seen.see(x)
                    best = min(best, loss.detach())  # XLA110 info
                    losses.append(loss.item())
                    print(max(losses))
            """
        ),
        example(
            """
            import math
            import torch


            class Gate(torch.nn.Module):
                def forward(self, x):
                    if x.abs().max() > 10:  # XLA110
                        x = x / 2
                    assert torch.isfinite(x).all()  # XLA110
                    scale = max(x.std(), 1e-5)  # XLA110
                    low = min([x.min(), x.mean()])  # XLA110
                    order = sorted(part.sum() for part in x.chunk(2))  # XLA110
                    size = max([len(x), x.shape[0]])
                    if any(p.grad.isnan().any() for p in self.parameters()):  # XLA110
                        scale = 1
                    return x / scale


            class Codebook(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("ready", torch.zeros(1))
                    self.register_buffer("mask", None)

                def forward(self, x):
                    if not self.ready:  # XLA110
                        self.ready.fill_(1)
                    large = x.abs().max() > 10
                    if large:  # XLA110
                        x = x / 2
                    return x if self.mask is None else x * self.mask


            def train(model, loader, optimizer):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    if not math.isfinite(loss.item()):  # XLA110
                        break
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            class Gate(torch.nn.Module):
                def forward(self, x, mask=None, scale: float = 1.0):
                    if mask is not None and scale > 1 and x.dim() == 3 and x.shape[0] > 2:
                        x = x * scale
                    if self.training and x.requires_grad and len(x) > 1:
                        x = x + 1
                    if x != None:
                        x = x * 2
                    x = x[: min(x.shape[0], 8)]
                    return x if x.dtype == torch.float32 else x.float()


            def choose(best, accuracy):
                if accuracy > best:
                    best = accuracy
                return best


            @torch.no_grad()
            def sample(model, x, steps):
                model.cuda()
                for step in range(steps):
                    x = model(x.cuda())
                    if step == steps - 1 and x.isnan().any():
                        raise ValueError("no number")
                return x
            """
        ),
    )
    mended = example(
        """
        import math
        import torch


        class Gate(torch.nn.Module):
            def forward(self, x):
                return torch.where(x.abs().max() > 10, x / 2, x)


        def train(model, loader, optimizer):
            for step, (x, y) in enumerate(loader):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if step % 100 == 0 and not math.isfinite(loss.item()):
                    break
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one condition on a tensor that a step runs."""
        if isinstance(node, cst.Call):
            yield from self._choice(node, facts)
            return
        assert isinstance(node, cst.If | cst.While | cst.Assert | cst.IfExp)
        when = facts.steps.when(node)
        if when not in (When.STEP, When.EVERY_STEP):
            yield from self._evaluated(node, facts)
            return
        if when is When.EVERY_STEP and _now_and_then(node.test, facts):
            return
        test = next(_on_values(node.test, facts), None)
        if test is None:
            return
        severity = self.severity if when is When.STEP else Severity.INFO
        message = f"`{code(test)}`: Python must know the value of a tensor; torch.where, or after the step"
        yield self.hit(node, message, severity)

    def _evaluated(
        self, node: cst.If | cst.While | cst.Assert | cst.IfExp, facts: Facts
    ) -> Iterable[Hit]:
        """Yield a condition on a tensor in each turn of a loop that samples, generates or evaluates."""
        inside = node.body if isinstance(node, cst.While) else node
        loop = evaluating_loop(inside, facts)
        if loop is None or _now_and_then(node.test, facts) or _is_sometimes(node, loop, facts):
            return
        test = next(_on_values(node.test, facts, in_loop=True), None)
        if test is None:
            return
        line = facts.context.position(loop).line
        message = (
            f"`{code(test)}`: Python needs the value of a tensor in each turn of the loop ({at_line(line)}): "
            "the graph is cut, and the host waits; torch.where, or ask every N turns"
        )
        yield self.hit(node, message)

    def _choice(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield Python's `min(a, b)`, `max(a, b)` or `sorted(list)` of tensors at every step."""
        name = call.func.value if isinstance(call.func, cst.Name) else ""
        if name not in CHOICES or facts.context.bindings(call.func) or keyword(call, "key"):
            return
        inside = facts.steps.inside(call)
        beside = facts.steps.when(call) is When.EVERY_STEP or facts.steps.beside.every_step(call)
        if not (inside or beside) or not any(_compared(call, facts)):
            return
        message = f"`{code(call)}`: Python must know the value of a tensor; {CHOICES[name]}"
        yield self.hit(call, message, self.severity if inside else Severity.INFO)


def _compared(call: cst.Call, facts: Facts) -> Iterator[bool]:
    """Yield of each value that Python compares whether it is a tensor of the device."""
    values = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    if len(call.args) > 1 and code(call.func) != "sorted":
        yield from map(facts.values.on_device, values)
        return
    of = values[0] if values else None
    lists = facts.values.given_to(of) if isinstance(of, cst.Name) else [of]
    for held in lists:
        if isinstance(held, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            yield facts.values.on_device(held.elt)
        elif isinstance(held, cst.List | cst.Tuple):
            yield from (facts.values.on_device(element.value) for element in held.elements)
    if isinstance(of, cst.Name):
        yield from (facts.values.on_device(put.value) for put in facts.bindings.put_into(of))


def _now_and_then(test: cst.BaseExpression, facts: Facts) -> bool:
    """Whether a part that the host knows comes first: `step % 100 == 0 and loss > 3`."""
    if not isinstance(test, cst.BooleanOperation) or not isinstance(test.operator, cst.And):
        return False
    return next(_on_values(test.left, facts), None) is None


def _is_sometimes(node: cst.CSTNode, loop: Loop, facts: Facts) -> bool:
    """Whether `node` stands in the loop below a test of its turn: `if step % 100 == 0:`."""
    below = node
    for above in facts.context.ancestors(node):
        if above is loop:
            return False
        if isinstance(above, cst.If) and below is above.body and _is_of_turn(above.test):
            return True
        below = above
    return False


def _is_of_turn(test: cst.BaseExpression) -> bool:
    """Whether `test` compares with one number, or takes each n-th: `i == last`, `not i % 10`."""
    return any(True for kind in (cst.Equal, cst.Modulo) for _ in nodes_of(test, kind))


def _on_values(
    test: cst.BaseExpression, facts: Facts, in_loop: bool = False
) -> Iterator[cst.BaseExpression]:
    """Yield the parts of a condition for which a tensor's value must be known.

    Args:
        test: the condition.
        facts: the script.
        in_loop: whether it stands in an evaluation, whose tensors of unknown place are on the device.
    """
    if isinstance(test, cst.BooleanOperation):
        yield from _on_values(test.left, facts, in_loop)
        yield from _on_values(test.right, facts, in_loop)
    elif isinstance(test, cst.UnaryOperation):
        yield from _on_values(test.expression, facts, in_loop)
    elif isinstance(test, cst.Name):
        values = (
            assignment.value
            for assignment in facts.bindings.reaching(test)
            if assignment.how is How.VALUE
        )
        answers = (value for value in values if isinstance(value, ANSWERS))
        if any(next(_on_values(answer, facts, in_loop), None) is not None for answer in answers):
            yield test
    elif isinstance(test, cst.Attribute):
        if facts.values.is_buffer(test):
            yield test
    elif isinstance(test, cst.Comparison):
        sides = [test.left, *(target.comparator for target in test.comparisons)]
        parts = [side for side in sides if not is_no_tensor(side, facts)]
        asked = [test] if len(parts) == len(sides) else parts
        if any(_is_there(part, facts, in_loop) for part in asked) or any(
            is_read(part, facts) for part in parts
        ):
            yield test
    elif isinstance(test, cst.Call) and (each := _of_each(test, facts)) is not None:
        if next(_on_values(each, facts, in_loop), None) is not None:
            yield test
    elif isinstance(test, cst.Call):
        name = facts.names.of(test.func) or ""
        argument = test.args[0].value if test.args else test
        checked = name in CHECKS and (reads_device(argument, facts) or is_read(argument, facts))
        computed = _computes(test) and (
            _is_there(test, facts, in_loop) or _asks_in_forward(test, facts)
        )
        if checked or computed or is_read(test, facts) or name in ("torch.allclose", "torch.equal"):
            yield test


def _of_each(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the condition that Python's `any` or `all` asks of each element: `any(x < 0 for x in xs)`."""
    if code(call.func) not in ("any", "all") or facts.context.bindings(call.func):
        return None
    each = call.args[0].value if len(call.args) == 1 else None
    return each.elt if isinstance(each, cst.GeneratorExp | cst.ListComp) else None


def _is_there(part: cst.BaseExpression, facts: Facts, in_loop: bool) -> bool:
    return reads_device(part, facts) or (in_loop and facts.values.is_tensor(part))


def _asks_in_forward(call: cst.Call, facts: Facts) -> bool:
    """Whether a forward asks `(targets == -100).any()` of a value of which nothing is known.

    The forward of a module computes with tensors; arrays of NumPy and lists are known where they are made.
    """
    function = facts.context.function_around(call)
    return (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ASK_TENSORS
        and facts.names.of(call.func) is None
        and facts.values.kind(call.func.value) is Kind.UNKNOWN
        and isinstance(function, cst.FunctionDef)
        and is_forward(function, facts.context)
        and facts.steps.inside(call)
    )


def _computes(call: cst.Call) -> bool:
    """Whether the call is of a kind that gives a tensor and no container: `.any()`, `torch.isnan(x)`."""
    last = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return last in ("any", "all", "isnan", "isinf", "isfinite", "max", "min", "sum", "equal")
