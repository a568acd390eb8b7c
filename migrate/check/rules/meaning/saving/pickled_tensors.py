"""Tensors of the device in pickles."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.saved import contents, is_of_host
from migrate.reading.values.whole_modules import is_module
from migrate.syntax.tree import code

PICKLES = frozenset({"pickle.dump", "pickle.dumps", "cloudpickle.dump", "dill.dump", "joblib.dump"})
DEEPEST = 4


class PickledTensors(Hazard):
    """A pickle of a model's weights, or of tensors of the device.

    **Why.** What `pickle.dump` and `joblib.dump` write of a tensor of XLA needs torch_xla to be loaded, and
    loads onto a device of XLA: not on a machine with GPUs, nor for `map_location`. Below a test of the rank,
    writing it also runs what is pending in one replica only.

    **What to do.** Move the values to the CPU on all replicas, then write them in one: `{name: value.cpu()
    for name, value in model.state_dict().items()}`, `x.cpu()`. Or save with `xm.save`. Of a module, pickle
    the state dict: `xm.save` leaves the tensors of a module on the device too.

    Source: torch_xla 2.9 (measured).
    """

    code = "XLA416"
    name = "pickled-tensors"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "pickle|dill|joblib"
    examples = (
        example(
            """
            import pickle

            import joblib
            import torch


            def finish(path, x):
                model = torch.nn.Linear(2, 2).to("xla")
                with open(path, "wb") as file:
                    pickle.dump(model.state_dict(), file)  # XLA416
                    pickle.dump({"epoch": 3, "model": model.state_dict()}, file)  # XLA416
                joblib.dump(model(x.to("xla")), path)  # XLA416
            """
        ),
        example(
            """
            import copy
            import pickle

            import torch
            from nets import make


            def finish(path, options):
                net = make(**options)
                net.train().to("xla")
                ema = copy.deepcopy(net).eval()
                data = dict(net=ema, options=options)
                with open(path, "wb") as file:
                    pickle.dump(data, file)  # XLA416
                    pickle.dump(net, file)  # XLA416
                    pickle.dump(dict(options=options), file)
                    data = {"options": options}
                    pickle.dump(data, file)
            """
        ),
        example(
            """
            import pickle

            import torch


            def finish(path, x, names):
                model = torch.nn.Linear(2, 2).to("xla")
                weights = {name: value.cpu() for name, value in model.state_dict().items()}
                with open(path, "wb") as file:
                    pickle.dump(weights, file)
                    pickle.dump({"epoch": 3, "names": names}, file)
                    pickle.dump(model(x.to("xla")).cpu(), file)
            """
        ),
        example(
            """
            import pickle

            import torch


            def finish(model, file):
                pickle.dump(model.state_dict(), file)
            """
        ),
    )
    mended = example(
        """
        import pickle

        import torch


        def finish(path):
            model = torch.nn.Linear(2, 2).to("xla")
            weights = {name: value.cpu() for name, value in model.state_dict().items()}
            with open(path, "wb") as file:
                pickle.dump(weights, file)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that pickles what is on the device."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) not in PICKLES or not node.args:
            return
        if not facts.context.moves_to_accelerator or is_of_host(node, facts.context):
            return
        saved = node.args[0].value
        for part in contents(saved, facts.context):
            if is_module(part, facts.context, by_call=False) and not _is_on_host(part, facts):
                message = (
                    f"{code(node.func)} of the module `{code(part)}`: its tensors load on XLA alone; pickle "
                    "its state_dict(), moved to the CPU on all replicas first"
                )
                yield self.hit(node, message)
                return
        held = _on_device(saved, facts, DEEPEST)
        if held is not None:
            message = (
                f"{code(node.func)} of `{code(held)}`: tensors of the device load on XLA alone; "
                "move them to the CPU on all replicas first"
            )
            yield self.hit(node, message)


def _is_on_host(module: cst.BaseExpression, facts: Facts) -> bool:
    """Whether a module is made by a call that leaves it on the CPU: `copy.deepcopy(net).cpu()`."""
    source = facts.context.bound_to(module)[1] if isinstance(module, cst.Name) else None
    while isinstance(source, cst.Call) and isinstance(source.func, cst.Attribute):
        if source.func.attr.value == "cpu":
            return True
        source = source.func.value
    return False


def _on_device(value: cst.CSTNode, facts: Facts, depth: int) -> cst.BaseExpression | None:
    """Return the part of `value` that is a tensor of the device, or the weights of a model."""
    if not isinstance(value, cst.BaseExpression) or depth < 0:
        return None
    if isinstance(value, cst.Dict | cst.List | cst.Tuple):
        parts = (_on_device(element.value, facts, depth - 1) for element in value.elements)
        return next((part for part in parts if part is not None), None)
    if isinstance(value, cst.Name):
        bound = facts.context.bound_to(value)[1]
        if isinstance(bound, cst.Dict | cst.List | cst.Tuple | cst.Call):
            return value if _on_device(bound, facts, depth - 1) is not None else None
    func = value.func if isinstance(value, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value == "state_dict":
        return value if facts.values.kind(func.value) is Kind.MODEL else None
    return value if facts.values.on_device(value) else None
