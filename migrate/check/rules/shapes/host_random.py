"""Python control flow that depends on a random number of the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.drawing import ORDERS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import TENSORS, Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.batch_sizes import chooses_size
from migrate.reading.steps.branch_values import computed_with_later
from migrate.reading.steps.chances import (
    is_chosen,
    is_in_drawn_order,
    is_set_of_strings,
    mapping_of,
)
from migrate.reading.steps.drawn import drawn_of, is_transform
from migrate.syntax.tree import code, nodes, nodes_of

SOME = "; replicas that draw differently run different graphs, and wait for each other for ever"


class HostRandom(Hazard):
    """A random number of the host decides what a step computes on the device.

    **Why.** Python takes the branch, so that each outcome is a graph of its own: layers that are skipped at
    random (LayerDrop), or CutMix for some batches, compile for each combination. So does the order, or the
    choice, of the layers and inputs that are computed with; the order of a set of strings and `hash` of a
    string are others in each process. Where the replicas draw
    differently, they run different graphs, and the next collective of the step hangs on a TPU. On GPUs each
    replica may take its own branch.

    A branch also decides by what it leaves behind: `labels = None`, or another entry of a dictionary, that a
    later line of the step hands to the model.

    A draw is followed through names, the entries of mappings (`state["use"]`), what functions return, and
    the lists of numbers that a loop goes over.

    The transforms of timm and torchvision draw so (`Mixup` with CutMix, `RandomCrop`, `ColorJitter`): called
    for a batch that is on the device, they compile a graph for each box.

    **What to do.** Such a transform goes before the move to the device. Else compute both and choose on the
    device: `keep = torch.rand((), device=x.device) > p`, then
    `torch.where(keep, layer(x), x)`. Where both are too dear, let all replicas draw the same (a generator
    with one seed: `random.Random(seed)`), and let there be few outcomes.

    Source: torch_xla 2.9 (measured: a compilation for each branch; simulated replicas part at the
    collective).
    """

    code = "XLA113"
    name = "host-random"
    severity = Severity.WARNING
    nodes = (cst.If, cst.While, cst.IfExp, cst.For, cst.Call, cst.ListComp)
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
        example(
            """
            import torch


            def train(model, loader, optimizer, p):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    if torch.rand(1) < p:  # XLA113
                        given = {}
                    else:
                        given = {"label": y}
                    loss = model(x, **given)
                    loss.backward()
                    optimizer.step()
                    if torch.rand(1) < p:
                        shown = "a sample"
                    else:
                        shown = "nothing"
                    print(loss.shape, shown)
            """
        ),
        example(
            """
            import torch
            from timm.data import Mixup


            def train(model, loader, optimizer):
                mix = Mixup(cutmix_alpha=1.0)
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    x, y = mix(x, y)  # XLA113
                    loss = model(x, y)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            from timm.data import Mixup


            def train(model, loader, optimizer):
                mix, weigh = Mixup(cutmix_alpha=1.0), Mixup(mixup_alpha=0.2)
                for x, y in loader:
                    x, y = mix(x, y)
                    x, y = x.cuda(), y.cuda()
                    loss = model(x, y)
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
        assert isinstance(node, cst.If | cst.While | cst.IfExp | cst.For | cst.Call | cst.ListComp)
        if isinstance(node, cst.Call):
            yield from self._transformed(node, facts)
            if not _may_choose(node, facts):
                return
        if isinstance(node, cst.If | cst.IfExp) and _sizes_batch(node, facts):
            message = (
                f"`{code(node.test)}` is drawn on the host by the loader of each replica, and decides the "
                f"size of the batch: each is a graph{SOME}; draw from the number of the batch, with one seed"
            )
            yield self.hit(node, message)
            return
        if not facts.steps.inside(node) or is_transform(node, facts):
            return
        drawn = drawn_of(facts)
        if isinstance(node, cst.ListComp):
            turns = node.for_in.iter
            if drawn.gives_drawn(turns) and facts.values.on_device(node.elt):
                yield self.hit(node, _numbers(turns))
        elif isinstance(node, cst.Call):
            yield from self._chosen(node, facts)
        elif isinstance(node, cst.For) and is_set_of_strings(node.iter, facts):
            if _computes(node, facts):
                message = (
                    f"the order of `{code(node.iter)}`, a set of strings, is another one in each process: "
                    "sort it; replicas that run different graphs wait for each other for ever"
                )
                yield self.hit(node, message)
        elif (
            isinstance(node, cst.For)
            and is_in_drawn_order(node.iter, facts)
            and _runs_elements(node, facts)
        ):
            what = f"what `{code(node.iter)}` gives, or its order, is drawn on the host"
            yield self.hit(node, f"{what}: each is a graph{SOME}")
        elif isinstance(node, cst.For):
            turns = node.iter
            counted = isinstance(turns, cst.Call) and code(turns.func) == "range"
            args = turns.args if isinstance(turns, cst.Call) and counted else ()
            if any(drawn.is_drawn(arg.value) for arg in args) and _computes(node, facts):
                message = (
                    f"the number of turns of `{code(turns)}` is drawn on the host: each is a graph"
                )
                yield self.hit(node, message + SOME)
            elif not counted and drawn.gives_drawn(turns) and _computes(node, facts):
                yield self.hit(node, _numbers(turns))
        elif _decides(node, facts) and _computes(node, facts):
            message = (
                f"`{code(node.test)}` is drawn on the host: each outcome is a graph, compiled for itself"
                f"{SOME}; draw on the device and choose by torch.where, or draw the same on all replicas "
                "(random.Random(seed))"
            )
            yield self.hit(node, message)

    def _transformed(self, call: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a call of a library's transform that draws on the host, for what is on the device."""
        maker = facts.context.calls.host_transforms.get(facts.context.place(call))
        if maker is None or facts.values.kind(call.args[0].value) in (Kind.HOST, Kind.TENSOR):
            return
        if facts.steps.inside(call) and not is_transform(call, facts):
            message = (
                f"`{code(call)}`: {maker} draws on the host what it does, and where: each outcome is a "
                f"graph, compiled for itself{SOME}; call it before the batch is moved to the device"
            )
            yield self.hit(call, message)

    def _chosen(self, call: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a call of a function, or an order of named parts, that the host draws."""
        if is_chosen(call.func, facts) and _is_handed_device(call, facts):
            message = (
                f"which function `{code(call.func)}` is, is drawn on the host: each is a graph"
            )
            yield self.hit(call, message + SOME)
        elif facts.names.of(call.func) in ORDERS and call.args:
            of = mapping_of(call.args[0].value, facts)
            around = facts.context.function_around(call)
            if of is not None and around is not None and _is_work(around.body, facts):
                message = (
                    f"`{code(call)}` draws on the host which parts of `{code(of)}` are computed with, or "
                    f"in which order: each is a graph{SOME}"
                )
                yield self.hit(call, message)


def _numbers(turns: cst.BaseExpression) -> str:
    """Return the message of a loop over random numbers."""
    return (
        f"the numbers of `{code(turns)}`, or how many they are, are drawn on the host: each choice is a "
        f"graph{SOME}"
    )


def _may_choose(call: cst.Call, facts: Facts) -> bool:
    """Whether a call is one of something chosen, or of a function that gives an order."""
    if isinstance(call.func, cst.Subscript | cst.Call):
        return True
    if isinstance(call.func, cst.Name) and facts.names.of(call.func) is None:
        values = (assignment.value for assignment in facts.bindings.given(call.func))
        return any(isinstance(value, cst.Subscript | cst.Call) for value in values)
    return facts.names.of(call.func) in ORDERS


def _is_handed_device(call: cst.Call, facts: Facts) -> bool:
    return any(facts.values.kind(arg.value) in TENSORS for arg in call.args)


def _runs_elements(loop: cst.For, facts: Facts) -> bool:
    """Whether a loop runs the elements that it iterates over, or what they name, on the device."""
    names = {name.value for name in facts.below(loop.target, cst.Name)}
    for call in facts.below(loop.body, cst.Call):
        function = call.func
        by_name = isinstance(function, cst.Name) and function.value == "getattr"
        asked = nodes_of(call.args[1], cst.Name) if by_name and len(call.args) > 1 else ()
        if any(name.value in names for name in asked):
            return True
        if not _is_handed_device(call, facts):
            continue
        if isinstance(function, cst.Name) and function.value in names:
            return True
        if isinstance(function, cst.Subscript) and any(
            name.value in names for part in function.slice for name in facts.below(part, cst.Name)
        ):
            return True
    return False


def _decides(node: cst.If | cst.While | cst.IfExp, facts: Facts) -> bool:
    """Whether the test is drawn; a limit of time that only ends a loop is not."""
    branches = [node.body, *([node.orelse] if isinstance(node, cst.If) and node.orelse else [])]
    clocks = isinstance(node, cst.IfExp) or not any(map(_leaves, branches))
    return drawn_of(facts, clocks=clocks).is_drawn(node.test)


def _sizes_batch(node: cst.If | cst.IfExp, facts: Facts) -> bool:
    """Whether a drawn branch of a `collate_fn`, or of a data set, gives a batch another size."""
    return drawn_of(facts).is_drawn(node.test) and chooses_size(node, facts)


def _computes(
    node: cst.If | cst.While | cst.IfExp | cst.For, facts: Facts, later: bool = True
) -> bool:
    """Whether what is computed on the device, also `later` in the step, depends on the branch taken."""
    if isinstance(node, cst.IfExp):
        sides = (node.body, node.orelse)
        return any(map(facts.values.on_device, sides)) or (
            _in_a_model(node, facts) and any(_may_compute(side, facts) for side in sides)
        )
    branches: list[cst.CSTNode] = [node.body]
    if isinstance(node, cst.If) and node.orelse is not None:
        branches.append(node.orelse)
    if any(_leaves(branch) for branch in branches):
        around = _around(node, facts)
        branches = [around.body] if around is not None else branches
    if any(_is_work(branch, facts) for branch in branches):
        return True
    if (
        later
        and isinstance(node, cst.If)
        and any(
            not isinstance(use, cst.If | cst.IfExp | cst.While)
            or _computes(use, facts, later=False)
            for use in computed_with_later(node, facts)
        )
    ):
        return True
    assigned = (a.value for branch in branches for a in facts.below(branch, cst.Assign))
    return _in_a_model(node, facts) and any(_may_compute(value, facts) for value in assigned)


def _in_a_model(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` stands in a method of a class with a `forward`."""
    around = facts.context.class_around(node)
    methods = around.body.body if around is not None else ()
    return any(isinstance(m, cst.FunctionDef) and m.name.value == "forward" for m in methods)


def _may_compute(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is computed from something unknown, such as a part of a model's batch."""
    if isinstance(value, cst.Call):
        operands = [arg.value for arg in value.args]
    elif isinstance(value, cst.BinaryOperation):
        operands = [value.left, value.right]
    elif isinstance(value, cst.Comparison):
        operands = [value.left]
    else:
        return False
    unknown = (cst.Name, cst.Attribute, cst.Subscript)
    return facts.values.kind(value) is Kind.UNKNOWN and any(
        isinstance(operand, unknown)
        and facts.values.kind(operand) is Kind.UNKNOWN
        and not facts.values.is_number(operand)
        and not drawn_of(facts).is_drawn(operand)
        for operand in operands
    )


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
        for assign in facts.below(branch, cst.Assign)
        for target in assign.targets
        if isinstance(target.target, cst.Subscript)
    )
    if any(facts.values.kind(tensor) in TENSORS for tensor in written):
        return True
    assigned = [a.value for a in facts.below(branch, cst.Assign) if isinstance(a.value, cst.Call)]
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
