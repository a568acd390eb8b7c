"""Activations of the ELU family, whose gradient is wrong on XLA unless they work in place."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import libcst as cst

from migrate.catalogue import wrong_operators as wrong
from migrate.reading.facts import facts_of
from migrate.rewrite.edits.nodes import keyword_arg, with_args
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
from migrate.syntax.tree import code, keyword

WHY = "its gradient on XLA is wrong where the input is negative"
REMEDY = "F.elu(x.clone(), inplace=True)"


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
        name = facts_of(context).names.of(node if not isinstance(node, cst.Call) else node.func)
        if name not in wrong.ELU_FUNCTIONS and name not in wrong.ELU_CLASSES:
            return
        if not isinstance(node, cst.Call):
            if _is_value(node, context):
                message = (
                    f"{code(node)}: {WHY}, unless it works in place: a function with `{REMEDY}`"
                )
                yield from self.report(node, message)
            return
        yield from self._alpha(node, name)
        in_place = _in_place_argument(node, name)
        if in_place is not None and code(in_place) not in ("True", "False"):
            yield from self.report(
                node, f"{code(node.func)}: {WHY}, unless inplace={code(in_place)} is True"
            )
        elif in_place is None or code(in_place) == "False":
            yield from self._not_in_place(node, name, context)

    def _alpha(self, call: cst.Call, name: str) -> Iterable[RuleFinding]:
        """Yield the finding of a CELU whose alpha may not be the first one's."""
        if not name.lower().endswith(".celu"):
            return
        plain = [arg.value for arg in call.args if arg.keyword is None]
        place = 0 if name in wrong.ELU_CLASSES else 1
        named = keyword(call, "alpha")
        alpha = named.value if named else plain[place] if len(plain) > place else None
        if alpha is not None and code(alpha) not in ("1", "1.0"):
            message = (
                "on XLA all CELUs of a process compute with the alpha of the first one: alpha * "
                "F.elu(x / alpha, inplace=True)"
            )
            yield from self.report(call, message)

    def _not_in_place(
        self, call: cst.Call, name: str, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        wrong_now = f"{code(call.func)}: {WHY}, unless it works in place"
        starred = any(arg.star for arg in call.args)
        if name in wrong.ELU_CLASSES:
            if starred or not _follows_layer(call, context):
                message = (
                    f"{wrong_now}: inplace=True if nothing else uses its input, else `{REMEDY}`"
                )
                yield from self.report(call, message)
                return
            replace = partial(_in_place, name=name)
            yield self.edit(call, replace, f"inplace=True: {WHY} otherwise", wrong=wrong_now)
            return
        rename = not name.startswith("torch.nn.")
        if starred or not call.args or (rename and not isinstance(call.func, cst.Attribute)):
            yield from self.report(call, f"{wrong_now}: `{REMEDY}`")
            return
        replace = partial(_renamed_in_place if rename else _in_place, name=name)
        yield self.edit(call, replace, f"in place, on a copy: {WHY} otherwise", wrong=wrong_now)


def _is_value(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether a name is a value that something may call: an argument, an assigned value, an element."""
    parent = context.parent(node)
    if isinstance(parent, cst.Arg):
        call = context.parent(parent)
        return not (isinstance(call, cst.Call) and code(call.func) in ("isinstance", "issubclass"))
    return isinstance(
        parent,
        cst.Assign | cst.AnnAssign | cst.Return | cst.Param | cst.DictElement | cst.Element,
    ) and not _is_class_test(node, context)


def _is_class_test(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the name is one of the classes of an `isinstance`."""
    return any(
        isinstance(above, cst.Call) and code(above.func) in ("isinstance", "issubclass")
        for above in context.ancestors(node)
    )


def _in_place_argument(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Return the argument `inplace`, by its name or its place; None where there is none."""
    named = keyword(call, "inplace")
    if named is not None:
        return named.value
    if name in wrong.ELU_FUNCTIONS and not name.startswith("torch.nn."):
        return None
    plain = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    place = _settings(name)
    return plain[place] if len(plain) > place else None


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


def _in_place(call: cst.Call, name: str) -> cst.Call:
    """Return the call with `inplace=True`; a function gets a copy of its input."""
    plain = [arg for arg in call.args if arg.keyword is None]
    dropped = {id(arg) for arg in plain[_settings(name) :]}
    args = [
        _copied(arg) if name in wrong.ELU_FUNCTIONS and _is_input(arg, call) else arg
        for arg in call.args
        if id(arg) not in dropped and not (arg.keyword and arg.keyword.value == "inplace")
    ]
    return with_args(call, [*args, keyword_arg("inplace", cst.Name("True"))])


def _renamed_in_place(call: cst.Call, name: str) -> cst.Call:
    """Return the call of a function of torch as one of its twin in place, with a copy of its input."""
    assert isinstance(call.func, cst.Attribute)
    func = call.func.with_changes(attr=cst.Name(f"{name.rpartition('.')[2]}_"))
    args = [_copied(arg) if _is_input(arg, call) else arg for arg in call.args]
    return with_args(call, args).with_changes(func=func)


def _is_input(arg: cst.Arg, call: cst.Call) -> bool:
    return arg is call.args[0] if arg.keyword is None else arg.keyword.value == "input"


def _settings(name: str) -> int:
    """Return the number of positional arguments before `inplace`."""
    return (name in wrong.ELU_FUNCTIONS) + (not name.lower().endswith(".selu"))


def _copied(arg: cst.Arg) -> cst.Arg:
    """Return the argument `x` as `x.clone()`."""
    value = arg.value
    if (
        not isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        and not value.lpar
    ):
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return arg.with_changes(value=cst.Call(cst.Attribute(value, cst.Name("clone"))))
