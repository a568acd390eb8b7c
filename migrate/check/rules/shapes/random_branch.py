"""A number that the host draws, and what a step computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, is_attribute_of_self, nodes_of
from migrate.reading.values.drawn import drawn
from migrate.reading.values.kind import TENSORS, Kind


class RandomBranch(Hazard):
    """A number drawn on the host decides what a step computes.

    **Why.** Python takes another way through the step, so each outcome is a graph of its own: `n` draws in a
    step are up to 2^n compilations. Replicas whose seeds differ take different ways in the same step: their
    graphs part, and they wait for each other in the next collective for ever. On GPUs each replica runs what
    it likes.

    **What to do.** Draw on the device and compute with the draw: `keep = torch.rand(n, device=x.device) < p`,
    then `torch.where(keep, a, b)`. Or do it in the data loader. Where a whole step is to be of one kind,
    let all replicas draw from a generator with the same seed, `random.Random(step)`.

    Source: torch_xla 2.9 (measured: one compilation for each outcome of `if random.random() < p:`).
    """

    code = "XLA113"
    name = "random-branch"
    severity = Severity.WARNING
    nodes = (cst.If, cst.IfExp, cst.While, cst.For)
    words = (
        r"rand|choice|sample|uniform|normal|gauss|integers|permutation|bernoulli|binomial|poisson"
    )
    examples = (
        example(
            """
            import random

            import numpy as np
            import torch


            class Layers(torch.nn.Module):
                def __init__(self, layers):
                    super().__init__()
                    self.layers = layers
                    self.last = torch.nn.Linear(8, 8)

                def forward(self, x):
                    for layer in self.layers:
                        if self.training and random.random() < 0.1:  # XLA113
                            continue
                        x = layer(x)
                    depth = np.random.randint(1, 4)
                    for _ in range(depth):  # XLA113
                        x = self.last(x)
                    flip = torch.rand(1).item() < 0.5
                    return x.flip(1) if flip else x  # XLA113


            def train(model, loader, optimizer, rng=np.random.default_rng(0)):
                rng = np.random.default_rng(0)
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    if rng.uniform() < 0.5:  # XLA113
                        x = x + torch.randn_like(x)
                    loss = model(x, y)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import random

            import torch


            class Layers(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.deep = random.random() < 0.5

                def forward(self, x, texts):
                    keep = torch.rand(len(x), device=x.device) < 0.9
                    if random.random() < 0.1:
                        texts = [""] * len(texts)
                    return torch.where(keep[:, None], self.layer(x), x), texts


            class Rows(torch.utils.data.Dataset):
                def __getitem__(self, index):
                    x = torch.ones(3)
                    if random.random() < 0.5:
                        x = x.flip(0)
                    return x
            """
        ),
    )
    mended = example(
        """
        import torch


        class Layers(torch.nn.Module):
            def forward(self, x):
                for layer in self.layers:
                    drop = torch.rand(1, device=x.device) < 0.1
                    x = torch.where(drop, x, layer(x)) if self.training else layer(x)
                return x
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a condition or a number of turns that is drawn, in a step."""
        assert isinstance(node, cst.If | cst.IfExp | cst.While | cst.For)
        if not facts.steps.inside(node):
            return
        if isinstance(node, cst.For):
            counts = isinstance(node.iter, cst.Call) and code(node.iter.func) == "range"
            tests = [arg.value for arg in node.iter.args] if counts else []  # type: ignore[attr-defined]
        else:
            tests = [node.test]
        for test in tests:
            draw = drawn(test, facts)
            if draw is not None and any(_computes(part, facts) for part in _parts(node)):
                yield self.hit(
                    test,
                    f"`{code(draw)}` is drawn on the host and decides what the step computes: a graph for "
                    "each outcome, and replicas that draw differently wait for each other; draw on the "
                    "device and use torch.where",
                )
                return


def _parts(node: cst.If | cst.IfExp | cst.While | cst.For) -> Iterator[cst.CSTNode]:
    """Yield what `node` decides about."""
    yield node.body
    if node.orelse is not None:
        yield node.orelse


def _computes(part: cst.CSTNode, facts: Facts) -> bool:
    """Whether `part` computes with tensors, or decides whether what follows does."""
    leaving = (cst.Continue, cst.Break, cst.Return)
    if any(next(nodes_of(part, kind), None) is not None for kind in leaving):
        return True
    kinds = (cst.Call, cst.BinaryOperation, cst.UnaryOperation, cst.Subscript)
    return any(_is_computed(node, facts) for kind in kinds for node in nodes_of(part, kind))


def _is_computed(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is a tensor or a module, or a layer of `self` of which nothing is known is called."""
    kind = facts.values.kind(node)
    if kind in TENSORS or kind is Kind.MODEL:
        return True
    layer = isinstance(node, cst.Call) and is_attribute_of_self(node.func) and bool(node.args)
    return layer and kind is Kind.UNKNOWN
