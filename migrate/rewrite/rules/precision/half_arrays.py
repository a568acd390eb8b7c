"""Make NumPy arrays of float32 where an autocast region gives bfloat16."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.reading.facts import Facts, facts_of
from migrate.reading.halves.half_values import Half, Precision, half_values_of
from migrate.reading.halves.made_arrays import array_arguments, is_container, receiver_of
from migrate.rewrite.edits.nodes import operand
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code


class HalfArrays(Rule):
    """Outputs of autocast regions become float32 before NumPy gets them.

    **What it does.** An autocast region of CUDA computes in float16, which NumPy has; on XLA it computes in
    bfloat16, which NumPy does not have: `output.cpu().numpy()` raises "Got unsupported ScalarType BFloat16",
    often after the first epoch only, in the evaluation.
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
    targets = BOTH
    beside_frameworks = True
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
        checked(
            """
            import numpy as np
            import torch
            from sklearn.metrics import roc_auc_score


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.head = torch.nn.Linear(8, 2)
                    self.norm = torch.nn.LayerNorm(2)

                def forward(self, x):
                    return self.head(x)

                def normed(self, x):
                    return self.norm(self.head(x))


            @torch.no_grad()
            def evaluate(model, loader, hard):
                outputs, rows = [], []
                net = Net().cuda()
                for x, y in loader:
                    with torch.autocast("cuda"):
                        output = model(x.cuda())
                        scores = net(x.cuda())
                        first = x.cuda() @ x.cuda().T
                    outputs.append(output.detach().cpu())
                    rows.append(scores)
                    print(np.asarray(first.cpu()))  # XLA870
                    print(roc_auc_score(y, scores[:, 1].cpu()))  # XLA870
                    print(np.stack(outputs))  # XLA870
                    label = scores.argmax(-1) if hard else scores
                    print(label.cpu().numpy())  # XLA870 warning
                return torch.cat(outputs).numpy(), torch.cat(rows, 0).cpu().numpy()  # XLA870
            """
        ),
        checked(
            """
            import numpy as np
            import torch


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.head = torch.nn.Linear(8, 2)
                    self.norm = torch.nn.LayerNorm(2)

                def forward(self, x):
                    return self.norm(self.head(x))


            def evaluate(model, criterion, x, y):
                net = Net().cuda()
                with torch.autocast("cuda", enabled=False):
                    plain = model(x)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    asked = model(x).cpu().numpy()
                with torch.cuda.amp.autocast():
                    output = model(x)
                    normed = net(x)
                    loss = torch.nn.functional.cross_entropy(output, y)
                    share = output.softmax(-1)
                    with torch.autocast("cuda", enabled=False):
                        wide = model(x.float())
                print(plain.cpu().numpy(), asked, loss.cpu().numpy(), share.cpu().numpy())
                print(np.asarray(normed.cpu()), wide.cpu().numpy(), y.cpu().numpy())
                print(output.argmax(-1).cpu().numpy(), (output > 0).cpu().numpy(), output.shape)
                return output.float().cpu().numpy(), output.to(torch.float32).cpu().numpy()
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one call that makes arrays, or the findings."""
        assert isinstance(node, cst.Call)
        facts = facts_of(context)
        receiver = receiver_of(node, facts)
        if receiver is not None:
            half = half_values_of(facts).of(receiver)
            if half.half is Half.SURE:
                wrong = _half_array(receiver, half, facts)
                yield self.edit(node.func, _converted, _edited(receiver), wrong=wrong)
            elif half.half is Half.POSSIBLE:
                message = _half_array(receiver, half, facts)
                yield from self.report(node, message, Severity.WARNING)
        for arg in array_arguments(node, facts):
            half = half_values_of(facts).of(arg.value)
            if half.half < Half.POSSIBLE:
                continue
            wrong = _half_array(arg.value, half, facts)
            if half.half is not Half.SURE:
                yield from self.report(node, wrong, Severity.WARNING)
            elif is_container(arg.value, facts):
                yield from self.report(node, wrong)
            else:
                yield self.edit(arg, _converted, _edited(arg.value), wrong=wrong)


def _half_array(value: cst.BaseExpression, half: Precision, facts: Facts) -> str:
    """Return what is reported of a value that NumPy is given."""
    is_half = "is" if half.half is Half.SURE else "may be"
    region = ""
    if (by := half.region) is not None:
        here = by.path == facts.context.file
        region = f" of {at_line(by.line, None if here else by.path)}"
    what = "each tensor" if is_container(value, facts) else "it"
    return (
        f"`{code(value)}` {is_half} bfloat16 on XLA, by the autocast region{region}, and NumPy has no "
        f"bfloat16: a TypeError; make {what} float32 first, by .float()"
    )


def _edited(value: cst.BaseExpression) -> str:
    return f"{code(value)}: .float() before NumPy, which has no bfloat16"


def _converted(updated: cst.Attribute | cst.Arg) -> cst.Attribute | cst.Arg:
    """Return the attribute or argument with `.float()` after its value."""
    converted = cst.Call(cst.Attribute(operand(updated.value), cst.Name("float")))
    return updated.with_changes(value=converted)
