"""Lazy layers that move before their first forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import is_accelerator, is_move
from migrate.syntax.tree import code, keyword

MAKERS = ("torch.nn.parameter.Uninitialized", "torch.nn.Uninitialized", "torch.Uninitialized")
MEND = (
    'make the model within `with torch.device("xla"):`, where its weights stay to be made, or run it once '
    "on the host before the move"
)
DEEPEST = 6
MOVES = frozenset({"to", "cuda"})
CHECKS = frozenset({"isinstance", "issubclass", "hasattr"})


class LazyLayers(Hazard):
    """A lazy layer moves to XLA before its first forward.

    **Why.** A lazy layer (`nn.LazyLinear`) has no weight yet. `.to("xla")` makes one of no elements of it,
    where `.to("cuda")` leaves it to be made: the first forward fails, and where the script catches that, the
    optimizer and DDP are given empty weights.

    **What to do.** Make the model on the device, `with torch.device("xla"): model = Net()`: there its weights
    stay to be made, and moves change nothing. Or run it once on the host before it moves.

    Modules on the device "meta" need nothing: `.to` refuses them, as on CUDA, and `to_empty` is right.

    Source: torch 2.9 and torch_xla 2.9 (measured for LazyLinear, LazyConv, LazyConvTranspose,
    LazyBatchNorm and LazyInstanceNorm).
    """

    code = "XLA857"
    name = "lazy-layers"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = (
        "The layer raises at its first forward, which infers other sizes (measured: LazyLinear)."
    )
    nodes = (cst.Call, cst.Attribute, cst.Name)
    words = "Lazy|Uninitialized|torch_geometric"
    examples = (
        example(
            """
            import torch.nn as nn

            model = nn.Sequential(
                nn.LazyConv2d(3, 1),  # XLA857 error
                nn.Flatten(),
                nn.LazyLinear(4),  # XLA857 error
            ).to("xla")
            """
        ),
        example(
            """
            import torch
            from torch import nn


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first = nn.LazyLinear(8)  # XLA857 error
                    self.norm = nn.BatchNorm1d(8)


            def main(device):
                net = Net()
                net.to("xla")
                net(torch.ones(2, 4).to("xla"))
            """
        ),
        example(
            """
            import torch
            from torch import nn


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first = nn.LazyLinear(8)


            def main(x):
                net = Net()
                net(torch.ones(2, 4))
                net.to("xla")
                return net(x)


            def other(x):
                with torch.device("xla"):
                    net = Net()
                return net(x), nn.LazyLinear(8, device="xla"), isinstance(net.first, nn.LazyLinear)
            """
        ),
        example(
            """
            import torch
            from torch.nn.modules.lazy import LazyModuleMixin
            from torch.nn.parameter import UninitializedParameter


            class Scale(LazyModuleMixin, torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = UninitializedParameter()  # XLA857 error


            class Wide(torch.nn.LazyLinear):  # XLA857 error
                pass


            class Net(torch.nn.Module):
                def __init__(self, dims):
                    super().__init__()
                    self.scale = Scale()
                    conv = torch.nn.LazyConv1d if dims == 1 else torch.nn.Conv2d  # XLA857 error
                    self.conv = conv(4, 1)
                    self.wide = Wide(4)


            def build():
                net = Net(1)
                return net


            def main():
                return build().to("xla")
            """
        ),
        example(
            """
            import torch


            class Trainer:
                def __init__(self, x):
                    self.net = torch.nn.LazyLinear(8)  # XLA857 error
                    self.head = torch.nn.LazyLinear(8)
                    self.other = torch.nn.LazyLinear(8)  # XLA857
                    self.net.to("xla")
                    self.head(self.net(x))
                    self.head = self.head.to("xla")
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch import nn


        def main(x):
            with torch.device("xla"):
                net = nn.Sequential(nn.LazyLinear(8), nn.ReLU())
            return net.to("xla")(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one layer whose weight the move takes before it is made."""
        assert isinstance(node, cst.Call | cst.Attribute | cst.Name)
        if not _makes_lazily(node, facts) or "torch.set_default_device" in facts.called:
            return
        states = set(_states(node, facts))
        what = f"`{code(node)}` has no weight before its first forward"
        if True in states:
            message = (
                f"{what}, and the model moves before that: XLA makes one of no elements; {MEND}"
            )
            yield self.hit(node, message, Severity.ERROR)
        elif None in states:
            message = f"{what}: `.to` an XLA device before that makes one of no elements; {MEND}"
            yield self.hit(node, message)


def _makes_lazily(node: cst.Call | cst.Attribute | cst.Name, facts: Facts) -> bool:
    """Whether `node` creates a lazy layer or its weight, or is a class of lazy layers that is passed on."""
    above = facts.context.parent(node)
    if isinstance(node, cst.Call):
        return _is_lazy(node.func, node, facts)
    if isinstance(above, cst.Arg):
        call = facts.context.parent(above)
        if isinstance(call, cst.Call) and code(call.func) in CHECKS:
            return False
    elif not isinstance(above, cst.Assign | cst.IfExp | cst.DictElement):
        return False
    if isinstance(above, cst.IfExp) and above.test is node:
        return False
    return _names_layer(facts.names.of(node) or "")


def _is_lazy(func: cst.BaseExpression, call: cst.Call, facts: Facts) -> bool:
    name = facts.names.of(func) or ""
    if name.startswith("torch_geometric.nn.") and call.args:
        return code(call.args[0].value).replace(" ", "") in ("-1", "(-1,-1)")
    return _names_layer(name) or name.startswith(MAKERS)


def _names_layer(name: str) -> bool:
    """Whether `name` is that of a lazy layer of torch: `torch.nn.LazyLinear`."""
    last = name.rpartition(".")[2]
    return name.startswith("torch.nn.") and last.startswith("Lazy") and last != "LazyModuleMixin"


def _states(layer: cst.CSTNode, facts: Facts, depth: int = 0) -> Iterator[bool | None]:
    """Yield, for each place that makes a model with the layer, whether that moves before its first forward.

    None: this file does not show it.
    """
    state = _moved_first(layer, facts) if isinstance(layer, cst.Call) else None
    if state is not None:
        yield state
        return
    uses = list(_makers(layer, facts)) if depth < DEEPEST else []
    for use in uses:
        yield from _states(use, facts, depth + 1)
    if not uses:
        yield None


def _makers(layer: cst.CSTNode, facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield the uses of the function that returns the created object, or of the class that holds it."""
    script = facts.context
    function, around = script.function_around(layer), script.class_around(layer)
    if function is not None and _returns(function, layer, facts):
        name = function.name
    elif around is not None:
        name = around.name
    else:
        return
    for mention in script.references(name.value):
        above = script.parent(mention)
        is_base = isinstance(above, cst.Arg) and isinstance(script.parent(above), cst.ClassDef)
        if isinstance(above, cst.Call) and above.func is mention:
            yield above
        elif is_base:
            yield mention


def _returns(function: cst.FunctionDef, layer: cst.CSTNode, facts: Facts) -> bool:
    """Whether a function returns an object that it creates, directly or through a variable."""
    target = _kept_as(layer, facts)
    for returned in facts.below(function.body, cst.Return):
        if returned.value is None:
            continue
        if _contains(returned.value, layer, facts) or (
            target is not None and code(returned.value) == code(target)
        ):
            return True
    return False


def _kept_as(layer: cst.CSTNode, facts: Facts) -> cst.Name | cst.Attribute | None:
    """Return the name or attribute under which the model is kept, if it has one."""
    for above in facts.context.within_statement(layer):
        if isinstance(above, cst.Assign):
            target = above.targets[0].target
            return target if isinstance(target, cst.Name | cst.Attribute) else None
    return None


def _moved_first(layer: cst.CSTNode, facts: Facts) -> bool | None:
    """Whether a model moves to XLA before its first forward; None: the block does not show it."""
    if _is_on_device(layer, facts):
        return False
    script = facts.context
    for above in script.within_statement(layer):
        if isinstance(above, cst.Call):
            if is_move(above, script):
                return True
            if above.func is layer:
                return False  # a forward on the host: `Net()(x)`
    target = _kept_as(layer, facts)
    if target is None:
        return None
    line = script.position(layer).line
    scope = script.function_around(layer)
    for mention in script.mentions(target):
        if script.position(mention).line <= line or script.function_around(mention) is not scope:
            continue
        user = script.parent(mention)
        if isinstance(user, cst.Call) and user.func is mention:
            return False
        if not isinstance(user, cst.Attribute) or user.attr.value not in MOVES:
            continue
        call = script.parent(user)
        if isinstance(call, cst.Call) and call.func is user:
            return True if is_move(call, script) else None
    return None


def _contains(outer: cst.CSTNode, inner: cst.CSTNode, facts: Facts) -> bool:
    return outer is inner or any(above is outer for above in facts.context.ancestors(inner))


def _is_on_device(layer: cst.CSTNode, facts: Facts) -> bool:
    """Whether a model is created on the accelerator: by `device=`, or in a block that sets the device."""
    if isinstance(layer, cst.Call) and (device := keyword(layer, "device")) is not None:
        return is_accelerator(device.value, facts.context)
    for above in facts.context.ancestors(layer):
        for item in above.items if isinstance(above, cst.With) else ():
            if is_accelerator(item.item, facts.context):
                return True
    return False
