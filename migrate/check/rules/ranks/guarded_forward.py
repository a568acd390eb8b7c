"""A model that only one replica runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

import libcst as cst

from migrate.catalogue.words import EVALUATION
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.ranks.parting.evaluations import evaluates
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.replicas.guards import Guard
from migrate.reading.replicas.wrapped import is_wrapped
from migrate.syntax.origins import at_line
from migrate.syntax.tree import bind, code, dotted


class GuardedForward(Hazard):
    """The wrapped model runs in one replica only.

    **Why.** The forward of DistributedDataParallel synchronizes buffers: a collective that the others never
    come to. On XLA the replicas also run different graphs, so that a later collective may hang.

    **What to do.** Evaluate in every replica, each on its part, and reduce; or call the unwrapped
    `model.module` under the condition and sync after it.

    The wrapped model given to a function of the script that calls it, or to one named `evaluate`, `test` or
    alike, counts as well. `evaluate(model.module)` is right, and worth knowing: the others wait for it in
    their next collective.
    """

    code = "XLA304"
    name = "guarded-forward"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(model, rank, x):
                model = DDP(model)
                if rank == 0:
                    print(model(x))  # XLA304
                    if hasattr(model, "module"):
                        y = model.module(x)
                    else:
                        y = model(x)
                    print(y)
            """
        ),
        example(
            """
            import torch
            from evaluation import evaluate
            from torch.nn.parallel import DistributedDataParallel as DDP


            def score(net, rows):
                return [net(row) for row in rows]


            def size(net):
                return sum(p.numel() for p in net.parameters())


            def train(net, rank, rows):
                model = DDP(net)
                score(model, rows)
                if rank == 0:
                    print(size(model))
                    score(model, rows)  # XLA304
                    score(rows=rows, net=model)  # XLA304
                    evaluate(model, rows)  # XLA304
                    evaluate(model.module, rows)  # XLA304 info
                    evaluate(net, rows)
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP

            model = DDP(make()).to("xla")


            def estimate_loss(rows):
                return sum(model(row).item() for row in rows)  # XLA304


            def train(rank, rows):
                if rank == 0:
                    print(estimate_loss(rows))
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            class Trainer:
                def __init__(self, net, rank):
                    self.rank = rank
                    self.model = DDP(net)

                def evaluate(self, rows):
                    return [self.model(row) for row in rows]  # XLA304

                def fit(self, rows):
                    if self.rank == 0:
                        self.evaluate(rows)
                        print(self.model.module(rows[0]))
                        print(self.model(rows[0]))  # XLA304
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def sample_from_model(generator, x):
                return generator(x)


            def train(net, rank, x):
                model = DDP(net)
                if rank == 0:
                    torch.save(sample_from_model(model, x), "sample.pt")  # XLA304
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, x):
                model = DDP(net)
                out = model(x)
                if rank == 0:
                    print(out, model.module(x), model.state_dict())


            def turn(model, x, log):
                log(model(x))


            def run(net, rank, x):
                model = DDP(net)
                if rank == 0:
                    turn(model, x, print)
                else:
                    turn(model, x, None)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla
        from torch.nn.parallel import DistributedDataParallel as DDP


        def train(model, rank, x):
            model = DDP(model)
            out = model(x)
            torch_xla.sync()
            if rank == 0:
                print(out)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one forward under a test of the rank, directly or in a function that gets the model."""
        assert isinstance(node, cst.Call)
        if not facts.guards.any or (guard := facts.guards.around(node)) is None:
            return
        line = facts.context.position(guard).line
        if (lone := lone_forward(node, facts)) is not None:
            if not lone.is_unwrapped:
                message = (
                    f"the wrapped model runs in some replicas only ({at_line(line)}): model.module, or "
                    "all"
                )
                yield self.hit(node, message)
        elif not _is_in_both(node, guard, facts):
            where = facts.context.calls.running_wrapped.get(facts.context.place(node))
            if where is not None:
                message = (
                    f"runs the wrapped model ({where}) in some replicas only ({at_line(line)}): "
                )
                yield self.hit(node, message + "its `module`, or all")
            yield from self._handed_over(node, line, facts)

    def _handed_over(self, node: cst.Call, line: int, facts: Facts) -> Iterable[Hit]:
        """Yield a call, under a test of the rank, of a function that gets and runs the wrapped model."""
        for arg in node.args:
            value = arg.value
            inner = value.value if _is_unwrapped(value) else value
            if not is_wrapped(inner, facts.context) or not _runs(node, arg, facts):
                continue
            if inner is not value:
                if evaluates(node, facts):
                    continue  # XLA305 reports it
                message = f"runs in some replicas only ({at_line(line)}): the others wait meanwhile"
                yield self.hit(node, message, Severity.INFO)
            else:
                message = f"runs the wrapped model in some replicas only ({at_line(line)}): "
                yield self.hit(node, message + f"{code(inner)}.module, or all")


@dataclass(frozen=True)
class LoneForward:
    """A forward of a wrapped model that some replicas alone make.

    Args:
        guard: what keeps the others from it.
        is_unwrapped: whether it stands where a test says that the model has no wrapper.
    """

    guard: Guard
    is_unwrapped: bool


def lone_forward(call: cst.Call, facts: Facts) -> LoneForward | None:
    """Return the test that keeps some replicas from `call`, a forward of a wrapped model. None otherwise."""
    name = call.func
    if not isinstance(name, cst.Name | cst.Attribute) or not facts.guards.any:
        return None
    guard = facts.guards.around(call)
    if guard is None or not _is_model(name, facts) or not is_wrapped(name, facts.context):
        return None
    return LoneForward(guard, _is_not_wrapped_here(call, name, facts))


def _is_model(name: cst.Name | cst.Attribute, facts: Facts) -> bool:
    if isinstance(name, cst.Name):
        return facts.values.kind(name) is Kind.MODEL
    return is_wrapped(name, facts.context)


def _is_in_both(node: cst.Call, guard: cst.CSTNode, facts: Facts) -> bool:
    """Whether both branches of `guard` run the function that `node` calls, on all paths."""
    if not isinstance(guard, cst.If) or not isinstance(guard.orelse, cst.Else):
        return False
    branches = (guard.body, guard.orelse.body)
    here = facts.context.parent(facts.context.statement_around(node))
    return any(here is branch for branch in branches) and all(
        any(
            isinstance(line, cst.SimpleStatementLine)
            and any(call.func.deep_equals(node.func) for call in facts.below(line, cst.Call))
            for line in branch.body
        )
        for branch in branches
    )


def _is_not_wrapped_here(node: cst.Call, name: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is in the `else` branch of `if hasattr(model, "module"):`."""
    below: cst.CSTNode = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If) and below is above.orelse:
            asked = code(above.test).replace("'", '"')
            if asked == f'hasattr({code(name)}, "module")':
                return True
        below = above
    return False


def _is_unwrapped(value: cst.BaseExpression) -> TypeGuard[cst.Attribute]:
    return isinstance(value, cst.Attribute) and value.attr.value == "module"


def _runs(call: cst.Call, arg: cst.Arg, facts: Facts) -> bool:
    """Whether the called function clearly runs the model `arg`: it calls it, or is an evaluation."""
    last = dotted(call.func).rpartition(".")[2]
    functions = facts.context.called(call)
    if not functions:
        return _is_evaluation(last)
    function = functions[0]
    names = [parameter.name.value for parameter in function.params.params]
    bound = bind(call, names[1:] if names[:1] == ["self"] else names)
    if bound is None:
        return _is_evaluation(last)
    passed = {name for name, argument in bound.items() if argument is arg}
    return any(
        isinstance(inner.func, cst.Name) and inner.func.value in passed
        for inner in facts.below(function.body, cst.Call)
    )


def _is_evaluation(name: str) -> bool:
    return EVALUATION.fullmatch(name) is not None
