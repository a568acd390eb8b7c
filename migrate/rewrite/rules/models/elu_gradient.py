"""Activations of the ELU family, whose gradient is wrong on XLA unless they work in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import libcst as cst

from migrate.catalogue import wrong_operators as wrong
from migrate.reading.facts import facts_of
from migrate.rewrite.edits.nodes import keyword_arg, operand, with_args
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

WHY = "its gradient on XLA is wrong where the input is negative"
REMEDY = "F.{}(x.clone(), inplace=True)"
# What a name is a part of when something may call it later.
VALUES = (
    cst.Arg,
    cst.Assign,
    cst.AnnAssign,
    cst.Return,
    cst.Param,
    cst.DictElement,
    cst.Element,
)
ONE = ("1", "1.0")


class EluGradient(Rule):
    """Compute ELU, CELU and SELU in place, where XLA's gradient is right.

    **What it does.** `F.elu(x)` becomes `F.elu(x.clone(), inplace=True)`, and `torch.selu(x)` becomes
    `torch.selu_(x.clone())`: the same values, and x stays as it is. torch_xla 2.9 computes the gradient from
    the output of the activation, but is given its input unless it works in place: where x is negative, the
    gradient is `x + alpha` instead of `alpha * exp(x)`. Nothing is printed, and the model trains with it.
    In `nn.Sequential`, `nn.ELU()` behind a linear layer, a convolution or a normalization becomes
    `nn.ELU(inplace=True)`: their backward passes do not need what they returned.

    **Left alone.** What works in place.

    **Reported.** `nn.ELU()` elsewhere, as another part of the script may need its input: with
    `inplace=True` that would change. The class or function as a value, such as `act_layer=nn.ELU`. An
    `inplace=` that is computed. CELU with an alpha: all CELUs of a process compute with the alpha of the
    first one, also in place.

    Source: torch_xla 2.9 (measured: values and gradients of the three, in place and not, against torch).
    """

    name = "elu-gradient"
    code = "XLA883"
    nodes = (cst.Call, cst.Attribute, cst.Name)
    words = "elu|celu|selu|ELU|CELU|SELU"
    examples = (
        rewritten(
            """
            import torch
            import torch.nn.functional as F


            def forward(self, x, h):
                h = F.elu(self.project(h), 0.5)
                return F.selu(x + h, inplace=False) + torch.selu(x)
            """,
            """
            import torch
            import torch.nn.functional as F


            def forward(self, x, h):
                h = F.elu(self.project(h).clone(), 0.5, inplace=True)
                return F.selu((x + h).clone(), inplace=True) + torch.selu_(x.clone())
            """,
        ),
        rewritten(
            """
            from torch import nn

            actor = nn.Sequential(
                nn.Linear(4, 8),
                nn.ELU(),
                nn.Linear(8, 8),
                nn.SELU(False),
            )
            """,
            """
            from torch import nn

            actor = nn.Sequential(
                nn.Linear(4, 8),
                nn.ELU(inplace=True),
                nn.Linear(8, 8),
                nn.SELU(inplace=True),
            )
            """,
        ),
        left_alone(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn


            def forward(self, x):
                assert not isinstance(self.act, nn.ELU)
                return F.elu(self.norm(x), inplace=True) + torch.celu_(x.clone())


            net = nn.Sequential(nn.Linear(4, 8), nn.ELU(1.0, True), nn.GELU(), nn.ReLU())
            """
        ),
        checked(
            """
            import torch.nn.functional as F
            from torch import nn


            class Net(nn.Module):
                def __init__(self, inplace):
                    super().__init__()
                    self.act = nn.ELU()  # XLA883
                    self.other = nn.SELU(inplace=inplace)  # XLA883
                    self.block = Block(4, act_layer=nn.ELU)  # XLA883
                    self.layers = nn.Sequential(Block(4, nn.ReLU), nn.ELU())  # XLA883
                    self.third = nn.CELU(0.5, inplace=True)  # XLA883

                def forward(self, x):
                    return F.elu(self.act(x))  # XLA883
            """
        ),
        reported(
            """
            import torch.nn.functional as F

            activations = {"elu": F.elu, "relu": F.relu}
            """,
            "wrong where the input is negative",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit or the findings of one activation."""
        called = node.func if isinstance(node, cst.Call) else node
        name = facts_of(context).names.of(called)
        if name not in wrong.ELU:
            return
        what = f"{code(called)}: {WHY}, unless it works in place"
        remedy = REMEDY.format(name.rpartition(".")[2].rstrip("_").lower())
        if not isinstance(node, cst.Call):
            if isinstance(context.parent(node), VALUES) and not context.asks_for_type(node):
                yield from self.report(node, f"{what}: a function with `{remedy}`")
            return
        bound = bind(node, wrong.ELU[name])
        if bound is None:
            yield from self.report(node, f"{what}: `{remedy}`")
            return
        if name in wrong.CELU and "alpha" in bound and code(bound["alpha"].value) not in ONE:
            message = (
                "on XLA all CELUs of a process compute with the alpha of the first one: alpha * "
                "F.elu(x / alpha, inplace=True)"
            )
            yield from self.report(node, message)
        in_place = code(bound["inplace"].value) if "inplace" in bound else "False"
        if in_place == "False":
            yield from self._not_in_place(node, name, bound, what, remedy, context)
        elif in_place != "True":
            yield from self.report(
                node, f"{code(called)}: {WHY}, unless inplace={in_place} is True"
            )

    def _not_in_place(
        self,
        call: cst.Call,
        name: str,
        bound: Mapping[str, cst.Arg],
        what: str,
        remedy: str,
        context: Workspace,
    ) -> Iterable[Edit | RuleFinding]:
        has_option = "inplace" in wrong.ELU[name]
        if "input" not in wrong.ELU[name]:
            if not _follows_layer(call, context):
                message = f"{what}: inplace=True if nothing else uses its input, else `{remedy}`"
                yield from self.report(call, message)
                return
            message = f"inplace=True: {WHY} otherwise"
        elif "input" not in bound or not (has_option or isinstance(call.func, cst.Attribute)):
            yield from self.report(call, f"{what}: `{remedy}`")
            return
        else:
            message = f"in place, on a copy: {WHY} otherwise"
        names = {id(arg): parameter for parameter, arg in bound.items()}
        kept = [
            (index, names[id(arg)])
            for index, arg in enumerate(call.args)
            if names[id(arg)] != "inplace"
        ]

        def replace(updated: cst.Call) -> cst.Call:
            args = [
                _copied(updated.args[index]) if parameter == "input" else updated.args[index]
                for index, parameter in kept
            ]
            if has_option:
                return with_args(updated, [*args, keyword_arg("inplace", cst.Name("True"))])
            assert isinstance(updated.func, cst.Attribute)
            twin = cst.Name(f"{updated.func.attr.value}_")
            return with_args(updated, args).with_changes(func=updated.func.with_changes(attr=twin))

        yield self.edit(call, replace, message, wrong=what)


def _follows_layer(call: cst.Call, context: Workspace) -> bool:
    """Whether the activation stands in `nn.Sequential(…)` behind a layer that does not need its output."""
    arg = context.parent(call)
    if not isinstance(arg, cst.Arg):
        return False
    sequential = context.parent(arg)
    names = facts_of(context).names
    if not isinstance(sequential, cst.Call) or names.of(sequential.func) != "torch.nn.Sequential":
        return False
    place = next(index for index, each in enumerate(sequential.args) if each is arg)
    before = sequential.args[place - 1] if place else None
    if before is None or before.star or arg.star or not isinstance(before.value, cst.Call):
        return False
    return names.of(before.value.func) in wrong.NEED_NO_OUTPUT


def _copied(arg: cst.Arg) -> cst.Arg:
    """Return the argument `x` as `x.clone()`."""
    return arg.with_changes(value=cst.Call(cst.Attribute(operand(arg.value), cst.Name("clone"))))
