"""`float(loss)` in the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import NUMBERS
from migrate.catalogue.wrong_operators import NUMBER_ARGUMENTS, NUMBERS_OF_METHODS
from migrate.check.asked_type import is_no_tensor
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import CHECKS, placed, reads_device
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.values.parameters import holds_parameters
from migrate.syntax.tree import last_part

# Functions that make a tensor or an array from the numbers in a list.
FROM_LISTS = frozenset(
    {
        "numpy.array",
        "numpy.asarray",
        "torch.FloatTensor",
        "torch.Tensor",
        "torch.as_tensor",
        "torch.asarray",
        "torch.tensor",
    }
)
LISTS = (cst.List, cst.Tuple, cst.ListComp)
# Functions of torch, and methods of a tensor, that return a Python truth value.
ANSWERS = frozenset(
    {
        *("torch.allclose", "torch.equal", "torch.is_nonzero", "torch._assert"),
        *("torch.testing.assert_close", "torch.testing.assert_allclose"),
    }
)
ANSWERING = frozenset({"allclose", "equal", "is_nonzero"})
# Functions of torch that read their arguments on the host.
FROM_NUMBERS = frozenset(
    {"torch.arange", "torch.full", "torch.linspace", "torch.logspace", "torch.scalar_tensor"}
)
BOUNDS = frozenset({"start", "end", "step", "steps", "size", "fill_value", "s"})


class ConversionHazard(Hazard):
    """A tensor becomes a Python number inside the step: `float(loss)`, `bool(flag)`, `math.isnan(norm)`.

    **Why.** It is a read like `.item()`: the graph is cut and the host waits for the device.
    `torch.tensor([norm(p) for p in weights])` reads each element of its list so, `torch.equal`,
    `torch.allclose` and `torch.is_nonzero` what they compare, `torch.arange` and `torch.full` their bounds.
    So do operators that take a number beside their tensors: `p.add_(update, alpha=ratio)`, `x.fill_(norm)`.

    **What to do.** Keep the tensor in the step, convert after it, and only when the number is shown. A list
    of tensors becomes one by `torch.stack`, which reads nothing. Multiply by the tensor instead of giving it
    as a number: `p.add_(update * ratio)`; `x.copy_(norm)` fills, and `norm.expand(size)` is full of it.
    """

    code = "XLA202"
    name = "float-in-step"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer):
                total = 0.0
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    total += float(loss)  # XLA202
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import math

            import torch


            def train(model, loader, optimizer):
                for x, y in loader:
                    model(x.cuda(), y.cuda()).backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    overflow = math.isnan(norm)  # XLA202
                    optimizer.step()
                    print("over" if overflow else "in range")
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                for x, y in loader:
                    model(x.cuda(), y.cuda()).backward()
                    norms = [torch.norm(p.grad) for p in model.parameters()]
                    total = torch.norm(torch.tensor(norms))  # XLA202
                    same = torch.norm(torch.as_tensor([n * 2 for n in norms]))  # XLA202
                    stacked = torch.norm(torch.stack(norms))
                    each = [n if torch.is_tensor(n) else torch.tensor(n) for n in (total, same)]
                    sizes = torch.tensor([p.numel() for p in model.parameters()])
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    loss = model(x, y)
                    torch._assert(y.min() >= 0, "labels")  # XLA202
                    same = torch.allclose(x, y) or x.equal(y)  # XLA202 # XLA202
                    steps = torch.arange(y.max(), device="cuda")  # XLA202
                    rest = torch.full((2,), loss.detach(), device="cuda")  # XLA202
                    zeros = torch.full((2, 3), 0.0, device="cuda") + torch.arange(x.shape[0], device="cuda")
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            class Lamb(torch.optim.Optimizer):
                def step(self, closure=None):
                    for group in self.param_groups:
                        for p in group["params"]:
                            update, ratio = p.grad / 2, 1.0
                            if group["decay"]:
                                ratio = torch.norm(p) / torch.norm(update)
                            p.data.add_(update, alpha=-group["lr"] * ratio)  # XLA202
                            p.data.add_(update * ratio, alpha=-group["lr"])


            def train(model, loader):
                optimizer = Lamb(model.parameters(), {})
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    model(x, y).backward()
                    norm = torch.norm(y)
                    y = torch.addcdiv(x, x, y, value=norm) + x.fill_(norm)  # XLA202 # XLA202
                    y = torch.full((3,), fill_value=norm) + x.new_full((3,), norm)  # XLA202 # XLA202
                    y = torch.full_like(x, norm) + torch.add(x, norm)  # XLA202
                    y = x.masked_fill(y > 0, norm) + torch.add(x, y, alpha=x.shape[0]) + x.pow(norm)
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def number(x):
                if isinstance(x, torch.Tensor):
                    return x
                return float(x)


            def train(model, loader, optimizer):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    total = loss if isinstance(loss, torch.Tensor) else float(loss)
                    if not torch.is_tensor(loss):
                        packed = torch.tensor([loss])
                    kept = number(loss)
                    loss.backward()
                    if not torch.is_tensor(total):
                        total = loss.detach()
                        mean = float(total)  # XLA202
                    shown = float(loss) if torch.is_tensor(loss) else loss  # XLA202
                    optimizer.step()
            """
        ),
        example(
            """
            from accelerate import Accelerator
            import torch


            def train(model, loader, optimizer):
                accelerator = Accelerator()
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    model.clip_grad_norm_(loss)  # XLA202
                    accelerator.clip_grad_norm_(model.parameters(), loss)  # XLA202
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, args):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda()) * float(args.scale) / int(x.shape[0])
                    loss.backward()
                    optimizer.step()
                return float(loss)
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer):
            total = torch.zeros(())
            for x, y in loader:
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                total = total + loss.detach()
            return float(total)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one conversion of a tensor."""
        assert isinstance(node, cst.Call)
        name = node.func.value if isinstance(node.func, cst.Name) else ""
        asked = facts.names.of(node.func) or ""
        if asked in FROM_LISTS and node.args:
            if any(
                reads_device(value, facts) and not is_no_tensor(value, facts)
                for value in _elements(node.args[0].value, facts)
            ):
                last = asked.rpartition(".")[2]
                what = f"{last}() of a list reads each tensor in it (torch.stack does not), and"
                yield from placed(self, node, what, facts)
            return
        if asked in FROM_NUMBERS:
            bounds = [
                arg.value for arg in node.args if arg.keyword is None or arg.keyword.value in BOUNDS
            ]
            if any(facts.values.on_device(bound) for bound in bounds):
                what = f"{asked.rpartition('.')[2]}() of a tensor's value"
                yield from placed(self, node, what, facts)
            return
        if any(
            reads_device(number, facts) and not is_no_tensor(number, facts)
            for number in _numbers(node, asked, facts)
        ):
            does_not = "copy_ does" if "fill" in last_part(node.func) else "multiplying by it does"
            what = f"{last_part(node.func)}() reads the tensor it takes as a number ({does_not} not), and"
            yield from placed(self, node, what, facts)
            return
        compared = _compared(node, asked)
        if compared and any(reads_device(value, facts) for value in compared):
            last = asked.rpartition(".")[2] or method(node)
            yield from placed(self, node, f"{last}() of tensors", facts)
            return
        name = asked if asked in CHECKS else name if name in NUMBERS else ""
        if name and len(node.args) == 1:
            value = node.args[0].value
            if not reads_device(value, facts) or is_no_tensor(value, facts):
                return
            yield from placed(self, node, f"{name}() of a tensor", facts)


def _numbers(call: cst.Call, asked: str, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what `call` of torch takes as numbers: `ratio` in `p.add_(update, alpha=ratio)`."""
    expected = (
        NUMBER_ARGUMENTS.get(asked.rpartition(".")[2])
        if asked
        else NUMBERS_OF_METHODS.get(method(call))
    )
    if expected is None or (asked and not asked.startswith("torch.")) or facts.context.run_by(call):
        return
    skipped = 1 if asked else 0  # a function's first argument is the tensor
    if method(call) == "clip_grad_norm_" and len(call.args) > 1:
        # FSDP's takes no parameters; that of Accelerate, or of a wrapper, is as torch's function.
        skipped = 1 if holds_parameters(call.args[0].value, facts.context) else skipped
    for position, arg in enumerate(call.args):
        if arg.star:
            return
        if (
            arg.keyword.value in expected
            if arg.keyword is not None
            else position - skipped in [at for at in expected.values() if at >= 0]
        ):
            yield arg.value


def _compared(call: cst.Call, asked: str) -> list[cst.BaseExpression]:
    """Return the tensors that `call` compares if it returns a Python truth value: `torch.equal(a, b)`."""
    values = [arg.value for arg in call.args if arg.keyword is None]
    if asked in ANSWERS:
        return values[:1] if asked == "torch._assert" else values
    is_method = not asked and method(call) in ANSWERING
    return [receiver(call), *values] if is_method else []


def _elements(value: cst.BaseExpression, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the elements of the list `value`: in a literal, in a variable, or added by `append`."""
    if isinstance(value, cst.Name):
        lists = [
            list_ for assignment in facts.bindings.given(value) for list_ in _lists(assignment)
        ]
        if lists and all(isinstance(list_, LISTS) for list_ in lists):
            for list_ in lists:
                yield from _elements(list_, facts)
            yield from (addition.value for addition in facts.bindings.put_into(value))
    elif isinstance(value, cst.List | cst.Tuple):
        for element in value.elements:
            nested = isinstance(element.value, LISTS)
            yield from _elements(element.value, facts) if nested else (element.value,)
    elif isinstance(value, cst.ListComp):
        yield value.elt


def _lists(assignment: Assignment) -> Iterator[cst.BaseExpression]:
    """Yield the values of a variable: assigned values, or each element of `for x in (a, b)`."""
    if assignment.how is not How.ELEMENT:
        yield from (assignment.value,) if assignment.value is not None else ()
    elif isinstance(assignment.value, cst.List | cst.Tuple):
        yield from (element.value for element in assignment.value.elements)
    elif isinstance(assignment.value, cst.ListComp):
        yield assignment.value.elt
    elif assignment.value is not None:
        yield assignment.value
