"""`torch.load` onto the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import LOADED
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import is_accelerator
from migrate.syntax.tree import code, keyword, last_part, nodes_of, string_value

# What tells that a file holds weights, where a statement loads one.


class Load(Hazard):
    """A checkpoint is loaded onto the device, or onto where it came from.

    **Why.** `map_location="cuda"` and `"xla"` raise, and without a `map_location` tensors that were saved on
    CUDA raise too. The device of Accelerate, `accelerator.device`, is "xla:0" on a TPU.

    **What to do.** `map_location="cpu"`, then `.to("xla")` or `load_state_dict`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA817"
    name = "load"
    severity = Severity.ERROR
    spoken_by = ("map-location",)
    nodes = (cst.Call,)
    words = "load"
    examples = (
        example(
            """
            import torch


            def load(path):
                state = torch.load(path, map_location="cuda:0")  # XLA817
                other = torch.load(path, map_location=lambda storage, loc: storage.cuda())  # XLA817
                model = torch.load(path)  # XLA817 info
                return state, other, model
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator


            def load(path):
                accelerator = Accelerator()
                device = accelerator.device
                state = torch.load(path, map_location=f"{device}")  # XLA817
                return state, torch.load(path, map_location=accelerator.device)  # XLA817
            """
        ),
        example(
            """
            import torch


            def fetch(path):
                return torch.load(path)  # XLA817 info


            def rows(path):
                return torch.load(path)


            def restore(network, path):
                content = fetch(path)
                network.load_state_dict(content["a"])
                return rows(path)
            """
        ),
        example(
            """
            import json

            import torch


            def load(path, device):
                torch.load(path, map_location=device)
                rows = torch.load(cached_features)
                return torch.load(path, map_location="cpu"), torch.load(path, "cpu"), json.load(path)
            """
        ),
    )
    mended = example(
        """
        import torch


        def load(path, model):
            state = torch.load(path, map_location="cpu")
            model.load_state_dict(state)
            return model.to("xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != "torch.load" or any(arg.star for arg in node.args):
            return
        arg = keyword(node, "map_location")
        if arg is None and len(node.args) > 1 and node.args[1].keyword is None:
            arg = node.args[1]
        if arg is None:
            above = facts.context.statement_around(node)
            named = LOADED.search(code(above).partition(":")[0])
            if not named and not _is_restored(above, facts):
                return  # data of the host
            message = 'tensors saved on CUDA raise without map_location="cpu"'
            yield self.hit(node, message, Severity.INFO)
        elif _is_device(arg.value, facts) or _is_to_device(node, facts):
            yield self.hit(node, 'map_location of a device raises on XLA: "cpu", then .to("xla")')


def _is_to_device(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` loads to the device of Accelerate, itself or by its name: `f"{accelerator.device}"`."""
    return facts.context.place(call) in facts.context.calls.loading_to_device


def _is_restored(statement: cst.CSTNode, facts: Facts, depth: int = 3) -> bool:
    """Whether what a statement assigns or returns is given to `load_state_dict`, whatever its name."""
    if depth and any(nodes_of(statement, cst.Return)) and _is_returned(statement, facts, depth):
        return True
    names = {
        target.value
        for assign in nodes_of(statement, cst.Assign)
        for target in (one.target for one in assign.targets)
        if isinstance(target, cst.Name)
    }
    return bool(names) and any(
        last_part(call.func) == "load_state_dict"
        and any(n.value in names for arg in call.args for n in nodes_of(arg.value, cst.Name))
        for call in facts.calls
    )


def _is_returned(statement: cst.CSTNode, facts: Facts, depth: int) -> bool:
    """Whether a function of the script returns what is restored where the script calls it."""
    function = facts.context.function_around(statement)
    for call in facts.calls:
        if any(one is function for one in facts.context.called(call)):
            above = facts.context.statement_around(call)
            given = any(
                isinstance(one, cst.Call) and last_part(one.func) == "load_state_dict"
                for one in facts.context.ancestors(call)
            )
            if given or _is_restored(above, facts, depth - 1):
                return True
    return False


def _is_device(value: cst.BaseExpression, facts: Facts) -> bool:
    if isinstance(value, cst.Lambda):
        methods = (call.func for call in nodes_of(value.body, cst.Call))
        return any(isinstance(f, cst.Attribute) and f.attr.value == "cuda" for f in methods)
    if isinstance(value, cst.Dict):
        sides = (e.value for e in value.elements)
        return any(_is_device(side, facts) for side in sides)
    if isinstance(value, cst.Name) and string_value(value) is None:
        return False  # a name that may be any device: `migrate rewrite` follows it
    return is_accelerator(value, facts.context)
