"""Weights that modules share stay shared when the model moves to the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.model.objects.ties import Tie
from migrate.reading.values.devices import Kind, device_argument, is_move
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.models.optimizer_order import (
    SWAP,
    OptimizerOrder,
    around_move,
    is_switched_off,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

MEND = "tie again after the move, or call torch.__future__.set_swap_module_params_on_conversion(True) first"
UNTRAINED = (
    "`{}`: after a move to XLA the weight is no longer shared. No program of the project that is seen here "
    "trains this model; one that does would train two weights"
)
COMMENT = "# Weights that modules of the model share stay shared."


class TiedWeightsRule(Rule):
    """Keep weights that modules of a model share shared when it moves to the device.

    **Why.** On XLA, `model.to('xla')` makes a new parameter for every name: `lm_head.weight` and
    `wte.weight`, one tensor before, are two after, and are trained apart with no error (measured). With CUDA
    the tie stays.

    **What it does.** `torch.__future__.set_swap_module_params_on_conversion(True)` is put before the move.
    The move then keeps the parameters themselves, and with them what is shared (measured, also for the models
    of transformers). The rule does this for a model whose modules share a weight by `self.head.weight =
    self.embedding.weight`, in this file or in a module that it imports. It does it also for the language
    models of transformers, most of which share the embedding's weight with the last layer. Such a model may
    be a part of the moved module at any depth (`self.net = GPT2LMHeadModel(config)` in the class of a part,
    `nn.ModuleList`, a factory, `get_peft_model`). If the project loads state dicts, `…(False)` comes after
    the move: while the switch is on, `load_state_dict` of a model in DDP raises (measured).

    **Reported.** Such an assignment in a model that is not seen to move, in this file or in an imported one;
    a move of such a model in a file that names no device.

    Source: torch_xla 2.9, transformers 5.23 (measured).
    """

    name = "tied-weights"
    code = "XLA818"
    targets = BOTH
    on_torch_tpu = "The move loses the ties too (measured)."
    beside_frameworks = True
    edited = Severity.WARNING
    nodes = (cst.Assign, cst.Call, cst.Import, cst.ImportFrom)
    of_facts = ("ties.moves", "ties.lost", "ties.imported")
    examples = (
        rewritten(
            """
            import torch


            class Model(torch.nn.Module):
                def __init__(self, size, width):
                    super().__init__()
                    self.wte = torch.nn.Embedding(size, width)
                    self.lm_head = torch.nn.Linear(width, size, bias=False)
                    self.lm_head.weight = self.wte.weight


            def train(rank):
                model = Model(100, 8)
                model = model.to(rank)
                torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
            """,
            """
            import torch


            class Model(torch.nn.Module):
                def __init__(self, size, width):
                    super().__init__()
                    self.wte = torch.nn.Embedding(size, width)
                    self.lm_head = torch.nn.Linear(width, size, bias=False)
                    self.lm_head.weight = self.wte.weight


            def train(rank):
                model = Model(100, 8)
                # Weights that modules of the model share stay shared.
                torch.__future__.set_swap_module_params_on_conversion(True)
                model = model.to("xla")
                torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            """,
        ),
        rewritten(
            """
            from transformers import AutoModelForCausalLM


            def load(name):
                model = AutoModelForCausalLM.from_pretrained(name)
                return model.cuda()
            """,
            """
            from transformers import AutoModelForCausalLM
            import torch


            def load(name):
                model = AutoModelForCausalLM.from_pretrained(name)
                # Weights that modules of the model share stay shared.
                torch.__future__.set_swap_module_params_on_conversion(True)
                return model.to("xla")
            """,
        ),
        left_alone(
            """
            import torch.nn as nn


            class Layer(nn.Module):
                def __init__(self, other):
                    super().__init__()
                    self.weight = other.weight
                    self.linear.weight = nn.Parameter(other.weight)
            """
        ),
        left_alone(
            """
            import torch


            def make(model):
                model = model.to('xla')
                model.head.weight = model.embedding.weight
                return model
            """
        ),
        left_alone(
            """
            from transformers import AutoModelForImageClassification


            def load(name):
                return AutoModelForImageClassification.from_pretrained(name).to('xla')
            """
        ),
        reported(
            """
            import torch.nn as nn


            class Model(nn.Module):
                def __init__(self, size, width):
                    super().__init__()
                    self.wte = nn.Embedding(size, width)
                    self.lm_head = nn.Linear(width, size, bias=False)
                    self.lm_head.weight = self.wte.weight
            """,
            "no longer shared",
        ),
        reported(
            """
            import torch


            def prepare(model, device):
                model.head.weight = model.embedding.weight
                return model.to(device)
            """,
            "if that is XLA",
        ),
        checked(
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
                    self.head.weight = self.token  # XLA818 error
                    for name in names:
                        self.second[name].kind = self.first[name].kind  # XLA818 error
            """
        ),
        checked(
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
        checked(
            """
            from transformers import AutoModelForCausalLM


            def load(name):
                model = AutoModelForCausalLM.from_pretrained(name)
                return model.to("xla")  # XLA818
            """
        ),
        checked(
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

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for a move of a model with shared weights, or for a tie."""
        ties = context.calls.ties
        if not (ties.moves or ties.lost or ties.imported) or _is_swapped(context):
            return
        if isinstance(node, cst.Call):
            if shared := ties.moves.get(context.place(node)):
                yield from self._move(node, shared, context)
            return
        line = context.position(node).line
        if isinstance(node, cst.Assign) and line in ties.lost:
            lost = ties.lost[line].text
            if line in ties.untrained:
                yield from self.report(node, UNTRAINED.format(lost), Severity.INFO)
            else:
                yield from self.report(node, _by_hand(f"`{lost}`"))
        elif not isinstance(node, cst.Assign) and context.moves_to_accelerator:
            for tie in ties.imported.get(line, ()):
                yield from self.report(node, _by_hand(f"`{tie.text}` ({tie})"))

    def _move(
        self, node: cst.Call, shared: tuple[Tie, ...], context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        where = ", ".join(str(tie) for tie in shared[:3])
        line = context.statement_around(node)
        if not _may_be_a_move(node, context):
            return
        if not context.devices.are_used:
            yield from self.report(
                node,
                f"modules of this model share a weight ({where}), which a move to a device makes two "
                f"weights of, if that is XLA: call {SWAP}(True) before it",
            )
        elif not isinstance(line, cst.SimpleStatementLine):
            yield from self.report(node, _by_hand(f"modules share a weight ({where})"))
        elif _is_first_of(line, node, context) and (
            is_switched_off(line, context) or not _is_kept(node, context)
        ):
            torch = context.imports.require("torch")
            swap = SWAP.replace("torch", torch, 1)
            message = f"{SWAP}(True): modules of the model share a weight ({where})"
            yield self.edit(
                line,
                lambda updated: around_move(updated, COMMENT, context, swap),
                message,
                wrong=f"the move unties weights that modules share ({where}): {MEND}",
            )


def _by_hand(what: str) -> str:
    return (
        f"{what}: after .to('xla') the weight is no longer shared; call {SWAP}(True) before the move, or "
        "repeat the assignment after it, before the optimizer is made"
    )


def _is_swapped(context: Workspace) -> bool:
    return any(
        isinstance(above := context.parent(name), cst.Attribute)
        and context.qualified_name(above) == SWAP
        for name in context.references(SWAP.rpartition(".")[2])
    )


def _may_be_a_move(node: cst.Call, context: Workspace) -> bool:
    """Whether `node`, `x.to(…)` or `x.cuda()`, moves to something that is not to be seen to be the CPU."""
    if is_move(node, context):
        return True
    arg = device_argument(node)
    if arg is None:
        return False
    is_type = (context.qualified_name(arg.value) or "").startswith("torch.")
    is_type |= code(arg.value).endswith("dtype")
    return not is_type and context.devices.kind(arg.value) is not Kind.CPU


def _is_first_of(line: cst.CSTNode, node: cst.Call, context: Workspace) -> bool:
    """Whether the move `node` is the first one in `line` of a model that shares weights."""
    moves = (call for call in context.below(line, cst.Call) if _keeps(call, context))
    return next(moves, node) is node


def _is_kept(node: cst.Call, context: Workspace) -> bool:
    """Whether what stands above the move `node`, and always runs before it, will keep the ties already."""
    function = context.function_around(node) or context.module
    here = context.position(node).line
    above = [
        call
        for call in context.below(function, cst.Call)
        if call is not node
        and context.position(call).line <= here
        and (context.function_around(call) or context.module) is function
    ]
    around = list(context.ancestors(context.statement_around(node)))
    order = OptimizerOrder()
    return any(
        context.parent(context.statement_around(call)) in around and _keeps(call, context)
        for call in above
    ) or any(
        isinstance(change, Edit) for call in (*above, node) for change in order.find(call, context)
    )


def _keeps(move: cst.Call, context: Workspace) -> bool:
    """Whether `move` is one before which this rule writes its line, or an earlier one has it."""
    is_one = context.place(move) in context.calls.ties.moves
    return (
        is_one
        and _may_be_a_move(move, context)
        and isinstance(context.statement_around(move), cst.SimpleStatementLine)
    )
