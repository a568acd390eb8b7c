"""Weights that are tied before the move."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import is_move
from migrate.syntax.tree import code, nodes_of, targets

MEND = "tie again after the move, or call torch.__future__.set_swap_module_params_on_conversion(True) first"


class WeightTie(Hazard):
    """Two modules share a weight.

    **Why.** `.to("xla")` makes a new parameter for each module: the tie is lost, the two weights are trained
    apart, and the model is larger. (With CUDA the tie stays.) So it is with the language models of
    transformers, most of which share the weight of the embedding with the last layer.

    **What to do.** Tie again after the move: `model.head.weight = model.embedding.weight`, or call
    `torch.__future__.set_swap_module_params_on_conversion(True)` before it.

    Reported where the weights are tied; where that is in an imported file that is not checked itself, or in
    transformers, at the move.

    Source: torch_xla 2.9, transformers 5.23 (measured).
    """

    code = "XLA818"
    name = "weight-tie"
    severity = Severity.WARNING
    spoken_by = ("tied-weights",)
    nodes = (cst.Assign, cst.Call)
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


            class Embedding(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.kind = torch.nn.Parameter(torch.zeros(1, 4))


            class Model(torch.nn.Module):
                def __init__(self, names):
                    super().__init__()
                    self.first = torch.nn.ModuleDict({name: Embedding() for name in names})
                    self.second = torch.nn.ModuleDict({name: Embedding() for name in names})
                    self.token = torch.nn.Parameter(torch.zeros(8, 4))
                    self.head = torch.nn.Linear(4, 8)
                    self.head.weight = self.token  # XLA818
                    for name in names:
                        self.second[name].kind = self.first[name].kind  # XLA818
            """
        ),
        example(
            """
            import torch


            class Kind:
                def __init__(self, other):
                    self.kind = "plain"
                    self.other = other
                    self.other.kind = other.first.kind


            class Language(torch.nn.Module):
                def __init__(self, weight):
                    super().__init__()
                    self.head = torch.nn.Linear(8, 100, bias=False)
                    self.head.weight = torch.nn.Parameter(weight)
                    self.weight = weight
                    self.class_weight = self.config.weight
            """
        ),
        example(
            """
            from transformers import AutoModelForCausalLM


            def load(name):
                model = AutoModelForCausalLM.from_pretrained(name)
                return model.to("xla")  # XLA818
            """
        ),
        example(
            """
            import torch
            from transformers import AutoModelForCausalLM, AutoModelForImageClassification


            def load(name):
                AutoModelForImageClassification.from_pretrained(name).to("xla")
                torch.__future__.set_swap_module_params_on_conversion(True)
                return AutoModelForCausalLM.from_pretrained(name).to("xla")
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
        """Yield one assignment of a module's weight to another's, or a move that unties weights."""
        ties = facts.context.calls.ties
        if ties.swapped:
            return
        if isinstance(node, cst.Call):
            if not ties.moves:
                return
            end = facts.context.end(node)
            here = facts.context.file
            shared = [
                tie
                for tie in ties.moves.get((end.line, end.column), ())
                if tie.path is None or (ties.alone and tie.path != here)
            ]
            if shared and is_move(node, facts.context):
                where = ", ".join(map(str, shared))
                yield self.hit(
                    node, f"the move unties weights that modules share ({where}): {MEND}"
                )
            return
        assert isinstance(node, cst.Assign)
        if "torch" not in facts.names.roots:
            return
        target, value = node.targets[0].target, node.value
        line = facts.context.position(node).line
        is_tie = (
            line in ties.lost or line in ties.kept or (_is_weight(target) and _is_weight(value))
        )
        if is_tie and not self._moved_above(target, facts):
            message = f"the tie of {code(target)} is lost by .to('xla'): {MEND}"
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
