"""Arrays of NumPy are made of float32 where an autocast region gives bfloat16."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.rules.meaning.tensors.half_arrays import half_array
from migrate.reading.facts import facts_of
from migrate.reading.halves.half_values import Half, half_values_of
from migrate.reading.halves.made_arrays import array_arguments, is_container, receiver_of
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

ATOMS = cst.Name | cst.Attribute | cst.Call | cst.Subscript


class HalfArrays(Rule):
    """Outputs of autocast regions become float32 before NumPy gets them.

    **What it does.** An autocast region of CUDA computes in float16, which NumPy has; on XLA it computes in
    bfloat16, which NumPy does not have: `output.cpu().numpy()` raises "Got unsupported ScalarType BFloat16".
    Where a value surely comes out of such a region, `.float()` is written before `.numpy()`, or after the
    argument of `np.asarray`, `np.save` or a metric of scikit-learn. The array is then float32, in which every
    float16 number stays what it is. The value is followed through names, lists (`append`, `torch.cat`),
    functions and methods that keep the type; the output of a model counts as half where its `forward`
    is not in the project.

    **Left alone.** What is float32 in a region too: softmax, norms and losses; a value that is converted
    already; regions in which the script itself asks for bfloat16.

    **Reported.** A value that may be one of several, of which some are no half precision; a list of such
    tensors.

    Source: torch 2.9 and torch_xla 2.9 (measured: the type of each operation's result in a region).
    """

    name = "half-arrays"
    code = "XLA870"
    nodes = (cst.Call,)
    words = "numpy|sklearn"
    examples = (
        rewritten(
            """
            import numpy as np
            import torch


            @torch.no_grad()
            def evaluate(model, loader):
                outputs, scores = [], []
                for images in loader:
                    with torch.cuda.amp.autocast():
                        output = model(images.cuda())
                    outputs.append(output)
                    scores.append(np.asarray(output.sigmoid().cpu()))
                return torch.cat(outputs).cpu().numpy(), scores
            """,
            """
            import numpy as np
            import torch
            import torch_xla


            @torch.no_grad()
            def evaluate(model, loader):
                outputs, scores = [], []
                for images in loader:
                    with torch_xla.step():
                        with torch.autocast("xla", dtype=torch.bfloat16):
                            output = model(images.to("xla"))
                        outputs.append(output)
                    scores.append(np.asarray(output.sigmoid().cpu().float()))
                return torch.cat(outputs).cpu().float().numpy(), scores
            """,
        ),
        left_alone(
            """
            import torch


            def predict(model, x):
                with torch.autocast("xla", dtype=torch.bfloat16):
                    y = model(x).softmax(-1)
                return y.cpu().numpy()
            """
        ),
        reported(
            """
            import torch


            def predict(model, x, hard):
                with torch.autocast("cuda"):
                    y = model(x)
                if hard:
                    y = y.argmax(-1)
                return y.cpu().numpy()
            """,
            "may be bfloat16",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the edits of one call that makes arrays, or the findings."""
        assert isinstance(node, cst.Call)
        facts = facts_of(context)
        receiver = receiver_of(node, facts)
        if receiver is not None:
            found = half_values_of(facts).of(receiver)
            if found.half is Half.SURE:
                yield self.edit(node.func, _converted, _edited(receiver))
            elif found.half is Half.POSSIBLE:
                yield from self.report(node, half_array(receiver, found, facts))
        for arg in array_arguments(node, facts):
            found = half_values_of(facts).of(arg.value)
            if found.half < Half.POSSIBLE:
                continue
            if found.half is Half.SURE and not is_container(arg.value, facts):
                yield self.edit(arg, _converted, _edited(arg.value))
            else:
                yield from self.report(node, half_array(arg.value, found, facts))


def _edited(value: cst.BaseExpression) -> str:
    return f"{code(value)}: .float() before NumPy, which has no bfloat16"


def _converted(updated: cst.Attribute | cst.Arg) -> cst.Attribute | cst.Arg:
    """Return the attribute or argument with `.float()` after its value."""
    value = updated.value
    if not isinstance(value, ATOMS) and not value.lpar:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return updated.with_changes(value=cst.Call(cst.Attribute(value, cst.Name("float"))))
