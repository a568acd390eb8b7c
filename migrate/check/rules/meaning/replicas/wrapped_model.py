"""`model.module` of a model that Accelerate prepared."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

# What a test asks that tells a wrapped model from a plain one.
ASKS = ("hasattr", "isinstance", "type(", "getattr", "MULTI_GPU")


class WrappedModel(Hazard):
    """The module inside of a prepared model is asked for, and on XLA there is none.

    **Why.** On several GPUs Accelerate wraps the model in DistributedDataParallel, whose `module` is the
    model. On XLA it wraps nothing: `model.module` raises AttributeError, as often as not at the first
    checkpoint, and so it does on one GPU.

    **What to do.** `accelerator.unwrap_model(model)`, which gives the model either way.

    Nothing is reported where a test asks first, as `hasattr(model, "module")` does.

    Source: Accelerate 1.15 (`Accelerator.prepare_model`).
    """

    code = "XLA854"
    name = "wrapped-model"
    severity = Severity.ERROR
    nodes = (cst.Attribute,)
    words = "accelerate"
    examples = (
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed


            def main(path):
                accelerator = Accelerator()
                set_seed(0)
                model = torch.nn.Linear(4, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                model, optimizer = accelerator.prepare(model, optimizer)
                accelerator.save(model.module.state_dict(), path)  # XLA854
            """
        ),
        example(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed


            def main(path):
                accelerator = Accelerator()
                set_seed(0)
                model = accelerator.prepare(torch.nn.Linear(4, 1))
                inner = model.module if hasattr(model, "module") else model
                accelerator.save(inner.state_dict(), path)
            """
        ),
    )
    mended = example(
        """
        import torch
        from accelerate import Accelerator
        from accelerate.utils import set_seed


        def main(path):
            accelerator = Accelerator()
            set_seed(0)
            model = accelerator.prepare(torch.nn.Linear(4, 1))
            accelerator.save(accelerator.unwrap_model(model).state_dict(), path)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one `model.module`."""
        assert isinstance(node, cst.Attribute)
        unwrapped = facts.context.calls.unwrapped
        if not unwrapped or node.attr.value != "module":
            return
        if facts.context.place(node) in unwrapped and not _is_asked_first(node, facts):
            message = (
                f"`{code(node)}` raises on XLA, where Accelerate wraps nothing: "
                f"`accelerator.unwrap_model({code(node.value)})`"
            )
            yield self.hit(node, message)


def _is_asked_first(node: cst.Attribute, facts: Facts) -> bool:
    """Whether a branch around `node` is taken for wrapped models only, or its failure is caught."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp) and any(ask in code(above.test) for ask in ASKS):
            return True
        if isinstance(above, cst.Try) and _catches(above):
            return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False


def _catches(attempt: cst.Try) -> bool:
    """Whether what is caught is that there is no `module`, and nothing that a whole training raises."""
    types = [code(handler.type) if handler.type is not None else "" for handler in attempt.handlers]
    return any("AttributeError" in name for name in types) or len(attempt.body.body) == 1
