"""Weights that are tied before the move."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity, example
from migrate.rewrite.devices import is_move
from migrate.rewrite.tree import code, nodes_of, targets


class WeightTie(Hazard):
    """Two modules share a weight.

    **Why.** `.to("xla")` makes a new parameter for each module: the tie is lost, the two weights are trained
    apart, and the model is larger. (With CUDA the tie stays.)

    **What to do.** Tie again after the move: `model.head.weight = model.embedding.weight`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA818"
    name = "weight-tie"
    severity = Severity.WARNING
    spoken_by = ("tied-weights",)
    nodes = (cst.Assign,)
    examples = (
        example(
            """
            import torch


            class Language(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding = torch.nn.Embedding(100, 8)
                    self.head = torch.nn.Linear(8, 100, bias=False)
                    self.head.weight = self.embedding.weight  # XLA818
            """
        ),
        example(
            """
            import torch


            class Language(torch.nn.Module):
                def __init__(self, weight):
                    super().__init__()
                    self.head = torch.nn.Linear(8, 100, bias=False)
                    self.head.weight = torch.nn.Parameter(weight)
                    self.weight = weight
                    self.class_weight = self.config.weight
            """
        ),
    )
    mended = example(
        """
            import torch


            class Language(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embedding = torch.nn.Embedding(100, 8)
                    self.head = torch.nn.Linear(8, 100, bias=False)


            def make():
                model = Language().to("xla")
                model.head.weight = model.embedding.weight
                return model
            """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one assignment of a module's weight to another's."""
        assert isinstance(node, cst.Assign)
        if "torch" not in facts.names.roots:
            return
        target, value = node.targets[0].target, node.value
        if _is_weight(target) and _is_weight(value) and not self._moved_above(target, facts):
            message = f"the tie of {code(target)} is lost by .to('xla'): tie again after the move"
            yield self.hit(node, message)

    def _moved_above(self, target: cst.BaseExpression, facts: Facts) -> bool:
        """Whether the model is on the device already: tied again after `model.to('xla')`."""
        root = code(target).partition(".")[0]
        around = facts.context.function_around(target) or facts.context.module
        line = facts.context.position(target).line
        calls = (c for c in nodes_of(around, cst.Call) if facts.context.position(c).line < line)
        moves = [call for call in calls if is_move(call, facts.context)]
        made = {code(t) for t in targets(around) if facts.context.position(t).line < line}
        return any(
            code(move).startswith(f"{root}.")
            or (root in made and code(facts.context.statement_around(move)).startswith(f"{root} ="))
            for move in moves
        )


def _is_weight(node: cst.BaseExpression) -> bool:
    """Whether `node` is the weight of a module: `self.head.weight`, not `self.weight`."""
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value == "weight"
        and isinstance(node.value, cst.Attribute | cst.Subscript)
        and "config" not in code(node)
    )
