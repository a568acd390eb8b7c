"""Python control flow that depends on a random number of the host."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.steps.drawn import drawn_of, is_transform
from migrate.reading.tree.tree import code, nodes, nodes_of
from migrate.reading.values.kind import TENSORS

SOME = "; replicas that draw differently run different graphs, and wait for each other for ever"


class HostRandom(Hazard):
    """A random number of the host decides what a step computes on the device.

    **Why.** Python takes the branch, so that each outcome is a graph of its own: layers that are skipped at
    random (LayerDrop), or CutMix for some batches, compile for each combination. Where the replicas draw
    differently, they run different graphs, and the next collective of the step hangs on a TPU. On GPUs each
    replica may take its own branch.

    **What to do.** Compute both and choose on the device: `keep = torch.rand((), device=x.device) > p`, then
    `torch.where(keep, layer(x), x)`. Where both are too dear, let all replicas draw the same (a generator
    with one seed: `random.Random(seed)`), and let there be few outcomes.

    Source: torch_xla 2.9 (measured: a compilation for each branch; simulated replicas part at the
    collective).
    """

    code = "XLA113"
    name = "host-random"
    severity = Severity.WARNING
    nodes = (cst.If, cst.While, cst.IfExp, cst.For)
    examples = (
        example(
            """
            import random

            import torch


            class Encoder(torch.nn.Module):
                def __init__(self, layers, rate):
                    super().__init__()
                    self.layers = torch.nn.ModuleList(layers)
                    self.rate = rate

                def forward(self, x):
                    for layer in self.layers:
                        if self.training and random.random() < self.rate:  # XLA113
                            continue
                        x = layer(x)
                    for _ in range(random.randint(1, 3)):  # XLA113
                        x = self.layers[0](x)
                    return x.flip(0) if torch.rand(1) < 0.5 else x  # XLA113
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def train(model, loader, optimizer):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    draw = np.random.rand(1)
                    loss = model(x, y)
                    if draw < 0.5:  # XLA113
                        loss = loss + model(x.flip(-1), y)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import random

            import torch


            class Crops(torch.utils.data.Dataset):
                def __getitem__(self, index):
                    image = self.images[index]
                    return image.flip(-1) if random.random() < 0.5 else image


            class Flip(torch.nn.Module):
                def forward(self, image):
                    if torch.rand(1) < 0.5:
                        return image.flip(-1)
                    return image


            def train(model, loader, optimizer):
                for x, y in loader:
                    if random.random() < 0.5:
                        x = x + 0.1
                    x, y = x.cuda(), y.cuda()
                    keep = torch.rand((), device=x.device) > 0.5
                    loss = torch.where(keep, model(x, y), model(x.flip(-1), y)) * random.random()
                    loss.backward()
                    optimizer.step()
                    if random.random() < 0.01:
                        print("still training")
            """
        ),
        example(
            """
            import random

            import torch


            class Jitter(torch.nn.Module):
                def forward(self, x):
                    if random.random() < 0.5:  # XLA113
                        return x.flip(-1)
                    return x


            def train(model, loader, optimizer):
                jitter = Jitter()
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    loss = model(jitter(x), y)
                    loss.backward()
                    optimizer.step()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Encoder(torch.nn.Module):
            def __init__(self, layers, rate):
                super().__init__()
                self.layers = torch.nn.ModuleList(layers)
                self.rate = rate

            def forward(self, x):
                for layer in self.layers:
                    keep = torch.rand((), device=x.device) >= self.rate
                    x = torch.where(keep, layer(x), x) if self.training else layer(x)
                return x
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one condition, or one loop whose number of turns is drawn."""
        assert isinstance(node, cst.If | cst.While | cst.IfExp | cst.For)
        if not facts.steps.inside(node) or is_transform(node, facts):
            return
        drawn = drawn_of(facts)
        if isinstance(node, cst.For):
            turns = node.iter
            counted = isinstance(turns, cst.Call) and code(turns.func) == "range"
            args = turns.args if isinstance(turns, cst.Call) and counted else ()
            if any(drawn.is_drawn(arg.value) for arg in args) and _computes(node, facts):
                message = (
                    f"the number of turns of `{code(turns)}` is drawn on the host: each is a graph"
                )
                yield self.hit(node, message + SOME)
        elif drawn.is_drawn(node.test) and _computes(node, facts):
            message = (
                f"`{code(node.test)}` is drawn on the host: each outcome is a graph, compiled for itself"
                f"{SOME}; draw on the device and choose by torch.where"
            )
            yield self.hit(node, message)


def _computes(node: cst.If | cst.While | cst.IfExp | cst.For, facts: Facts) -> bool:
    """Whether what is computed on the device depends on the branch that is taken."""
    if isinstance(node, cst.IfExp):
        return facts.values.on_device(node.body) or facts.values.on_device(node.orelse)
    branches: list[cst.CSTNode] = [node.body]
    if isinstance(node, cst.If) and node.orelse is not None:
        branches.append(node.orelse)
    if any(_leaves(branch) for branch in branches):
        around = _around(node, facts)
        branches = [around.body] if around is not None else branches
    return any(_is_work(branch, facts) for branch in branches)


def _leaves(branch: cst.CSTNode) -> bool:
    return any(isinstance(node, cst.Continue | cst.Break | cst.Return) for node in nodes(branch))


def _around(node: cst.CSTNode, facts: Facts) -> cst.For | cst.While | cst.FunctionDef | None:
    """Return the loop or the function that a branch leaves."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.For | cst.While | cst.FunctionDef):
            return above
    return None


def _is_work(branch: cst.CSTNode, facts: Facts) -> bool:
    """Whether a block computes on the device, or writes to a part of a tensor there."""
    written = (
        target.target.value
        for assign in nodes_of(branch, cst.Assign)
        for target in assign.targets
        if isinstance(target.target, cst.Subscript)
    )
    if any(facts.values.kind(tensor) in TENSORS for tensor in written):
        return True
    assigned = [a.value for a in nodes_of(branch, cst.Assign) if isinstance(a.value, cst.Call)]
    if any(facts.values.kind(arg.value) in TENSORS for call in assigned for arg in call.args):
        return True
    parts = (
        *nodes_of(branch, cst.Call),
        *nodes_of(branch, cst.BinaryOperation),
        *nodes_of(branch, cst.AugAssign),
    )
    return any(
        facts.values.on_device(part.target if isinstance(part, cst.AugAssign) else part)
        for part in parts
    )
