"""Tensors made from numbers that only one replica has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import bind, code

MAKERS = frozenset({"torch.as_tensor", "torch.tensor", "torch.stack", "torch.cat"})


class ValuesOfOne(Hazard):
    """A single replica makes a tensor of numbers, the others make it of an empty list.

    **Why.** What is computed from the tensor on the device, or added to what all replicas reduce, is a part
    of the graph of one replica only. With different graphs the replicas wait for each other in the next
    collective. On GPUs each replica may run anything between two collectives.

    **What to do.** Pass the same number of values on all replicas, and give those of the others no weight
    (`0.0`, or a weight of zero). Or collect the values on the host, and reduce on all replicas.
    """

    code = "XLA309"
    name = "values-of-one"
    severity = Severity.WARNING
    nodes = (cst.IfExp,)
    words = spelled(MAKERS)
    examples = (
        example(
            """
            import torch

            rank, counters = 0, {}


            def report(name, value):
                elements = torch.as_tensor(value)
                if elements.numel() > 0:
                    counters[name] = elements.sum()


            def report_of_first(name, value):
                report(name, value if rank == 0 else [])  # XLA309


            class Statistics:
                def add(self, value):
                    self.values = torch.as_tensor(value)

                def add_of_first(self, value):
                    self.add(value if rank == 0 else [])  # XLA309


            def mean(losses):
                return torch.tensor(losses if rank == 0 else []).cuda()  # XLA309
            """
        ),
        example(
            """
            import torch

            rank = 0


            def report(name, value):
                print(name, value)


            def scaled(losses, found):
                report("losses", losses if rank == 0 else [])
                return torch.tensor(1.0 if rank == 0 else 0.0), torch.tensor(losses if found else [])
            """
        ),
    )
    mended = example(
        """
        import torch

        rank = 0


        def mean(losses):
            return torch.tensor(losses if rank == 0 else [0.0] * len(losses)).cuda()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the conditional expression, if a tensor is made from it."""
        assert isinstance(node, cst.IfExp)
        if _is_empty(node.body) is _is_empty(node.orelse) or not facts.guards.asks(node.test):
            return
        arg = facts.context.parent(node)
        call = facts.context.parent(arg)
        if isinstance(arg, cst.Arg) and isinstance(call, cst.Call) and _makes(call, arg, facts):
            yield self.hit(
                node,
                "some replicas make a tensor of numbers here and the others of none: what is computed of it "
                "on the device parts them; hand over as many on all",
            )


def _is_empty(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.List | cst.Tuple) and not value.elements


def _makes(call: cst.Call, arg: cst.Arg, facts: Facts) -> bool:
    """Whether `call`, or a function that it runs, makes a tensor from its argument `arg`."""
    if facts.names.of(call.func) in MAKERS:
        return bool(call.args) and call.args[0] is arg
    return any(
        parameter in {code(call.args[0].value) for call in _made(function, facts)}
        for function in facts.context.called(call)
        for parameter in _given(call, arg, function)
    )


def _made(function: cst.FunctionDef, facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls in `function` that make a tensor from their first argument."""
    for call in facts.below(function, cst.Call):
        if call.args and facts.names.of(call.func) in MAKERS:
            yield call


def _given(call: cst.Call, arg: cst.Arg, function: cst.FunctionDef) -> list[str]:
    """Return the name of the parameter of `function` for the argument `arg` of `call`."""
    parameters = [parameter.name.value for parameter in function.params.params]
    if isinstance(call.func, cst.Attribute) and parameters[:1] == ["self"]:
        del parameters[0]
    bound = bind(call, parameters) or {}
    return [name for name, value in bound.items() if value is arg]
