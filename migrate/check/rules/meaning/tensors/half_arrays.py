"""NumPy is given what an autocast region makes bfloat16."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.halves.half_values import Found, Half, half_values_of
from migrate.reading.halves.made_arrays import array_arguments, is_container, receiver_of
from migrate.syntax.tree import code


class HalfArraysHazard(Hazard):
    """NumPy gets bfloat16 of an autocast region.

    **Why.** An autocast region of CUDA computes in float16, which NumPy has. On XLA it computes in bfloat16,
    of which NumPy makes no array: `.numpy()`, `np.asarray` and the metrics of scikit-learn raise "Got
    unsupported ScalarType BFloat16", often after the first epoch only, in the evaluation. What stays float32
    in a region (softmax, norms, losses) is not reported.

    **What to do.** `.float()` before the tensor becomes an array: `output.cpu().float().numpy()`.

    Source: torch 2.9 and torch_xla 2.9 (measured: the type of each operation's result in a region).
    """

    code = "XLA870"
    name = "half-array"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "numpy|sklearn"
    spoken_by = ("half-arrays",)
    examples = (
        example(
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
        example(
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
    mended = example(
        """
        import torch


        @torch.no_grad()
        def predict(model, x):
            with torch.autocast("xla", dtype=torch.bfloat16):
                output = model(x.to("xla"))
            return output.cpu().float().numpy()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that makes arrays of such values."""
        assert isinstance(node, cst.Call)
        receiver = receiver_of(node, facts)
        values = [receiver] if receiver is not None else []
        values += [arg.value for arg in array_arguments(node, facts)]
        for value in values:
            found = half_values_of(facts).of(value)
            if found.half >= Half.POSSIBLE:
                sure = found.half is Half.SURE
                severity = self.severity if sure else Severity.WARNING
                yield self.hit(node, half_array(value, found, facts), severity)


def half_array(value: cst.BaseExpression, found: Found, facts: Facts) -> str:
    """Return what is reported of a value that NumPy is given."""
    is_half = "is" if found.half is Half.SURE else "may be"
    region = ""
    if (by := found.region) is not None:
        here = by.path == facts.context.file
        region = f" of line {by.line}" if here else f" of {by.path.name}:{by.line}"
    what = "each tensor" if is_container(value, facts) else "it"
    return (
        f"`{code(value)}` {is_half} bfloat16 on XLA, by the autocast region{region}, and NumPy has no "
        f"bfloat16: a TypeError; make {what} float32 first, by .float()"
    )
