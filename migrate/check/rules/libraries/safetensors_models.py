"""Models on XLA that safetensors saves or loads."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.devices import device_argument, is_move
from migrate.syntax.tree import code, keyword, last_part

RAISE = frozenset({"safetensors.torch.save_model", "safetensors.torch.load_model"})
LOAD_OTHERWISE = "model.load_state_dict(load_file(path)), or load before the model moves"
PRETRAINED = "save_pretrained"
# Libraries whose models have that method.
LIBRARIES = frozenset({"diffusers", "huggingface_hub", "peft", "transformers"})


class SafetensorsModels(Hazard):
    """safetensors saves or loads a model that is on XLA.

    **Why.** `save_model`, `load_model`, and `save_pretrained` of transformers tell weights that modules share
    by the address of their memory. Tensors of XLA have none: "Attempted to access the data pointer on an
    invalid python storage". `save_file`, `load_file` and `safe_open` work.

    **What to do.** Save copies on the CPU: `weights = {name: value.cpu() for name, value in
    model.state_dict().items()}` on all replicas, then in one of them `save_file(weights, path)`, or
    `model.save_pretrained(path, state_dict=weights)`. Load with `model.load_state_dict(load_file(path))`, or
    before the model moves.

    Source: torch_xla 2.9, safetensors 0.8, transformers 5.23 (measured).
    """

    code = "XLA415"
    name = "safetensors-models"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "safetensors|save_pretrained"
    examples = (
        example(
            """
            import safetensors.torch
            import torch
            from safetensors.torch import load_model as load
            from transformers import AutoModel


            def resume(path):
                model = torch.nn.Linear(2, 2).to("xla")
                load(model, path)  # XLA415
                safetensors.torch.save_model(model, path)  # XLA415


            def tune(path):
                model = AutoModel.from_pretrained(path)
                model.to("xla")
                model.save_pretrained(path)  # XLA415
            """
        ),
        example(
            """
            import torch
            from safetensors.torch import load_file, load_model, save_file, save_model
            from transformers import AutoModel, AutoTokenizer


            def resume(path):
                model = torch.nn.Linear(2, 2)
                load_model(model, path)
                model.to("xla")
                model.load_state_dict(load_file(path))
                model.cpu()
                save_model(model, path)


            def tune(path):
                model, tokenizer = AutoModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
                model.to("xla")
                tokenizer.save_pretrained(path)
                weights = {name: value.cpu() for name, value in model.state_dict().items()}
                model.save_pretrained(path, state_dict=weights)
                model.to("cpu").save_pretrained(path)
            """
        ),
    )
    mended = example(
        """
        from safetensors.torch import save_file


        def finish(model, path):
            weights = {name: value.cpu() for name, value in model.state_dict().items()}
            save_file(weights, path)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that raises for a model on XLA."""
        assert isinstance(node, cst.Call)
        if not facts.context.moves_to_accelerator:
            return
        if facts.names.of(node.func) in RAISE and node.args:
            model = node.args[0].value
            if not is_on_host(model, node, facts):
                load = (facts.names.of(node.func) or "").endswith("load_model")
                mend = (
                    LOAD_OTHERWISE
                    if load
                    else "save_file of {name: value.cpu() for name, value in model.state_dict().items()}"
                )
                yield self.hit(node, f"{code(node.func)} of a model on XLA raises: {mend}")
        elif last_part(node.func) == PRETRAINED and isinstance(node.func, cst.Attribute):
            model = node.func.value
            if keyword(node, "state_dict") is not None or facts.names.roots.isdisjoint(LIBRARIES):
                return
            if facts.values.kind(model) is Kind.MODEL and not is_on_host(model, node, facts):
                message = (
                    f"{code(node.func)} of a model on XLA raises: pass it state_dict="
                    "{name: value.cpu() for name, value in model.state_dict().items()}"
                )
                yield self.hit(node, message)


def is_on_host(model: cst.BaseExpression, node: cst.Call, facts: Facts) -> bool:
    """Whether the last move of `model` above `node` is to the CPU, or none is and one follows below."""
    if isinstance(model, cst.Call) and _goes_to_host(model):
        return True
    around = facts.context.function_around(node) or facts.context.module
    root, here = _root(model), facts.context.position(node).line
    above: cst.Call | None = None
    below = False
    for call in facts.below(around, cst.Call):
        moves = _goes_to_host(call) or is_move(call, facts.context)
        if moves and _root(call.func) == root and call is not node:
            if facts.context.position(call).line < here:
                above = call
            else:
                below = True
        elif moves and code(facts.context.statement_around(call)).startswith(f"{root} ="):
            above = call if facts.context.position(call).line < here else above
    if above is not None:
        return _goes_to_host(above)
    return below


def _root(node: cst.CSTNode) -> str:
    """Return the name that an expression begins with: `model` of `model.module.cpu()`."""
    while isinstance(node, cst.Attribute | cst.Call | cst.Subscript):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else ""


def _goes_to_host(call: cst.Call) -> bool:
    if last_part(call.func) == "cpu" and isinstance(call.func, cst.Attribute):
        return not call.args
    place = device_argument(call) if last_part(call.func) == "to" else None
    return place is not None and code(place.value).strip("'\"") == "cpu"
