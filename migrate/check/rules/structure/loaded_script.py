"""TorchScript modules that are loaded from a file."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword, string_value

MOVES = frozenset({"cuda", "to"})


class LoadedScript(Hazard):
    """A TorchScript module is loaded from a file, and does not move to XLA.

    **Why.** What `torch.jit.load` returns stays on the host: `.to("xla")` raises an `AssertionError` without
    a message, also for a module that holds it, and `map_location` takes no XLA device. On the host it raises
    for a tensor of the device.

    **What to do.** Make the module in Python, load `loaded.state_dict()` into it, and move that. Or run the
    loaded module on the host, on `x.cpu()`, after the step.

    Source: torch 2.9 and torch_xla 2.9 (measured: `torch.jit.load(path).to("xla")`).
    """

    code = "XLA728"
    name = "loaded-script"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "jit"
    examples = (
        example(
            """
            import torch
            from torch import nn


            class Features:
                def __init__(self, path, device="cuda"):
                    self.net = torch.jit.load(path, map_location="cpu").eval().to(device)  # XLA728
                    self.other = torch.jit.load(path)  # XLA728

                def place(self):
                    self.other.cuda()


            class Loss(nn.Module):
                def __init__(self, path):
                    super().__init__()
                    self.net = torch.jit.load(path).eval()  # XLA728


            def score(path, x, device):
                net = torch.jit.load(path, map_location=device)  # XLA728
                return net(x)


            def voice(path, x):
                return torch.jit.load(path, map_location="cpu")(x)  # XLA728 info
            """
        ),
        example(
            """
            import torch


            def export(model, x, path):
                torch.load(path, map_location="cpu")
                model.to("cuda")
            """
        ),
    )
    mended = example(
        """
        import torch


        def features(net, path, device):
            loaded = torch.jit.load(path, map_location="cpu")  # migrate: ignore[XLA728]
            net.load_state_dict(loaded.state_dict())
            return net.to(device)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one `torch.jit.load`."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != "torch.jit.load":
            return
        location = keyword(node, "map_location")
        placed = location is not None and string_value(location.value) != "cpu"
        if placed or _moves(node, facts):
            message = (
                "what torch.jit.load returns does not move to XLA: .to raises an AssertionError, and "
                "map_location takes no XLA device: load its state_dict() into the module in Python, or run "
                "it on the host"
            )
            yield self.hit(node, message)
        else:
            message = (
                "what torch.jit.load returns stays on the host, and raises for tensors of the device: give "
                "it x.cpu()"
            )
            yield self.hit(node, message, Severity.INFO, is_shown=True)


def _moves(load: cst.Call, facts: Facts) -> bool:
    """Whether the loaded module moves to a device: at once, by its name, or with the module that holds it."""
    context = facts.context
    node: cst.CSTNode = load
    while True:
        method = context.parent(node)
        call = context.parent(method)
        if not (isinstance(method, cst.Attribute) and isinstance(call, cst.Call)):
            break
        if call.func is not method:
            break
        if _is_move(call):
            return True
        node = call
    assign = context.parent(node)
    if not isinstance(assign, cst.Assign):
        return False
    target = assign.targets[0].target
    around = context.class_around(load)
    if isinstance(target, cst.Attribute) and around is not None:
        bases = {context.qualified_name(base.value) for base in around.bases}
        if "torch.nn.Module" in bases:
            return True
    place = around or context.function_around(load) or context.module
    return any(
        isinstance(call.func, cst.Attribute)
        and code(call.func.value) == code(target)
        and _is_move(call)
        for call in facts.below(place, cst.Call)
    )


def _is_move(call: cst.Call) -> bool:
    """Whether `call` is `x.cuda()`, or `x.to(device)` with something else than a type or the CPU."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in MOVES:
        return False
    if call.func.attr.value == "cuda":
        return True
    spelled = [
        code(arg.value) for arg in call.args if not arg.keyword or arg.keyword.value == "device"
    ]
    return any(
        "cpu" not in place and (not place.startswith("torch.") or place.startswith("torch.device"))
        for place in spelled
    )
