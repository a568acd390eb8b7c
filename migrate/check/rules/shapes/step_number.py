"""A number that changes at each step, as a constant of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.steps.batch_sizes import drawn_size, is_first_use
from migrate.reading.steps.counters import counters_of
from migrate.reading.steps.drawn import drawn_of, is_transform
from migrate.reading.steps.evaluating import evaluating_loop
from migrate.reading.steps.growing import JOINS, growing_list, grown_tensor
from migrate.reading.steps.in_step import When
from migrate.reading.steps.loops import SIZED
from migrate.reading.steps.unended import without_gradients
from migrate.syntax.tree import code, keyword, nodes, nodes_of, string_value

# Methods, and functions of torch, with the place of the number that is a part of the graph (of the method).
PLACES = {"roll": 0, "pow": 0, "select": 1, "narrow": 1, "diagonal": 0, "triu": 0, "tril": 0}
RESIZED = frozenset({"nn.functional.interpolate", "nn.functional.upsample"})
# What gives each number once, as many as it is given.
PERMUTATIONS = frozenset({"torch.randperm", "numpy.random.permutation"})
LISTS = PERMUTATIONS | {"random.sample", "random.choices"}


class StepNumber(Hazard):
    """A loop index, a counter or a random number is a position, a size or an exponent in the graph.

    **Why.** A Python number is a constant of the graph where it is an index or a slice bound of a tensor on
    the device, a size, a bound of `arange`, a shift of `roll`, or an exponent: each new number compiles the
    step again. Other numbers are not: torch_xla passes `x * alpha`, `x / temperature`, `torch.full(size, t)`,
    `fill_`, `clamp` and the learning rate of an optimizer to the same graph as data. A list of numbers
    is data too: `x[torch.randperm(n).tolist()]`.
    The positions of a sliding window are such numbers: each is compiled once, and again for images of
    another size. So is the length of a list that gets one tensor more in each turn: `sum(losses)` and
    `torch.stack(losses)` in the loop compile for each length. A running total, `total += loss.detach()`, is
    one graph, in whatever turn it is read. A tensor that gets longer in each turn of a loop that generates,
    `ids = torch.cat((ids, next), dim=1)`, makes the whole model compile for each length.

    A random number that each replica draws for itself makes the replicas' graphs differ as well: the next
    collective hangs. So does a size that the `collate_fn` of the loader draws for its batch, or the data set.

    **What to do.** Make the number a tensor on the device, and the position a lookup:
    `t = torch.tensor(i, device="xla")`, then `betas[t]`, `x.index_copy_(1, t.view(1), new)`. For an exponent
    `torch.tensor(float(i), device="xla")`. Numbers that a table can give are read on the host, before the
    loop: `betas = betas.tolist()`. What gets longer is made once for the longest, with a mask:
    `ids.index_copy_(1, t.view(1), next)`. A sliding window is `x.index_select(3, left + torch.arange(width,
    device="xla"))`, where `left` is a tensor on the device.

    Source: torch_xla 2.9 (measured, compilations for six numbers: `table[i]`, `x[:i]`, `x[i:i + 2]`,
    `x ** i`, `torch.arange(i)`, `torch.roll(x, i)` six; `x * i`, `x + i`, `x / f`, `torch.full(size, i)`,
    `fill_(i)`, `torch.add(alpha=i)`, `clamp(max=i)`, `table[tensor]`, `torch.tensor(i)`, SGD and
    Adam with a new learning rate one or none).
    """

    code = "XLA112"
    name = "step-number"
    severity = Severity.WARNING
    nodes = (cst.Subscript, cst.Call, cst.BinaryOperation)
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F


            def blur(x, fade, width):
                radius = int(30 * fade)
                fixed = torch.arange(width, device=x.device)
                kernel = torch.arange(-radius, radius + 1, device=x.device)  # XLA112
                return F.conv2d(x, (kernel.float() + fixed).view(1, 1, 1, -1))


            def train(model, optimizer, steps):
                for step in range(steps):
                    x = torch.randn(4, 1, 64, 64).cuda()
                    loss = model(blur(x, 1 - step / steps, 1)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            class Language(torch.nn.Module):
                def forward(self, ids, features):
                    for layer in self.layers:
                        features = torch.cat((features, layer(features)), 1)
                    return self.head(ids, features)

                @torch.no_grad()
                def generate(self, ids, features, turns):
                    for _ in range(turns):
                        scores = self(ids[:, -64:], features)[:, -1]
                        drawn = torch.multinomial(torch.softmax(scores, -1), 1)
                        ids = torch.cat((ids, drawn), dim=1)  # XLA112
                    return ids

                @torch.no_grad()
                def window(self, ids, features, turns):
                    shown = []
                    for _ in range(turns):
                        drawn = self(ids, features).argmax(-1)
                        ids = torch.cat((ids[:, 1:], drawn), dim=1)
                        shown = torch.cat((shown, drawn.cpu()), dim=1)
                    return shown


            @torch.no_grad()
            def evaluate(model, loader):
                model.cuda()
                outputs, numbers = torch.zeros(0, 8, device="cuda"), torch.zeros(0, 8)
                for x, y in loader:
                    out = model(x.cuda())
                    outputs = torch.cat([outputs, out])  # XLA112
                    numbers = torch.cat([numbers, out.cpu()])
                return outputs, numbers
            """
        ),
        example(
            """
            import torch

            betas = torch.linspace(1e-4, 0.02, 60, device="cuda")


            @torch.no_grad()
            def sample(model, x):
                for i in reversed(range(60)):
                    t = torch.full((len(x),), i, device="cuda")
                    x = x - betas[i] * model(x, t)  # XLA112
                return x
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                weights = torch.linspace(0, 1, 1000, device="cuda")
                for step, (x, y) in enumerate(loader):
                    x = x.cuda()
                    loss = model(x, y.cuda()) * weights[step]  # XLA112
                    loss = loss + x.roll(step, 1).mean() ** step  # XLA112
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import numpy as np
            import torch
            from torch.nn import functional as F


            def box(size, share):
                width = int(size[2] * np.sqrt(share))
                left = np.random.randint(size[2])
                return left, left + width


            def train(model, loader, optimizer):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    share = np.random.beta(1.0, 1.0)
                    left, right = box(x.size(), share)
                    x[:, :, left:right] = x.flip(0)[:, :, left:right]  # XLA112
                    x = F.interpolate(x, size=int(np.random.choice([32, 64])))  # XLA112
                    loss = model(x, y) * share
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import random

            import torch
            import torch.nn.functional as F
            from torch.utils.data import DataLoader


            def collate(samples):
                images = torch.stack([image for image, _ in samples])
                size = random.choice([224, 256])  # XLA112
                return F.interpolate(images, size=size), torch.tensor([label for _, label in samples])


            def blur(samples):
                images = F.interpolate(torch.stack(samples), size=random.choice([56, 112]))
                return F.interpolate(images, size=224)


            loaders = DataLoader(data, collate_fn=collate), DataLoader(data, collate_fn=blur)
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, epochs):
                weights = torch.linspace(0, 1, 1000).tolist()
                for epoch in range(epochs):
                    for step, (x, y) in enumerate(loader):
                        x = x.cuda()
                        for group in optimizer.param_groups:
                            group["lr"] = 1e-3 / (step + 1)
                        loss = model(x, y.cuda()) * weights[step] + x.mean() * epoch
                        t = torch.full((4,), step, device="cuda")
                        first, rest = x[0], x[:, 1:]
                        for layer in range(4):
                            loss = loss + x[layer].mean()
                        loss.backward()
                        optimizer.step()
            """
        ),
        example(
            """
            import torch


            class Queue(torch.nn.Module):
                def __init__(self, width, size):
                    super().__init__()
                    self.size, self.at, self.seen = size, 0, 0
                    self.net = torch.nn.Linear(width, width)
                    self.register_buffer("queue", torch.randn(width, size))
                    self.register_buffer("place", torch.zeros(1, dtype=torch.long))

                def forward(self, x):
                    out = self.net(x)
                    n, at = out.shape[0], self.at
                    self.queue[:, at : at + n] = out.detach().T  # XLA112
                    self.queue[:, self.place] = out.detach()[:1].T
                    self.at = (self.at + n) % self.size
                    self.seen += n
                    self.place += 1
                    return out @ self.queue / self.seen


            class Losses:
                def __init__(self, size, device):
                    self.values, self.i = torch.zeros(size, device=device), 0

                def add(self, loss):
                    self.values[self.i] = loss.detach()  # XLA112
                    self.i += 1


            def train(loader):
                model, losses = Queue(4, 64).cuda(), Losses(1000, "cuda")
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in loader:
                    loss = model(x.cuda()).mean()
                    loss.backward()
                    optimizer.step()
                    losses.add(loss)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla

        betas = torch.linspace(1e-4, 0.02, 60).tolist()


        @torch.no_grad()
        def sample(model, x):
            for i in reversed(range(60)):
                t = torch.full((len(x),), i, device="xla")
                x = x - betas[i] * model(x, t)
                torch_xla.sync()
            return x
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one index, slice, exponent or size."""
        numbers = Numbers(facts, node)
        if isinstance(node, cst.Call | cst.Subscript):
            yield from self._sized(node, facts)
        if isinstance(node, cst.Subscript):
            yield from self._indexed(node, facts, numbers)
        elif isinstance(node, cst.BinaryOperation):
            power = isinstance(node.operator, cst.Power) and numbers.changes(node.right)
            if power and facts.values.on_device(node.left):
                yield self._said(node, node.right, "an exponent", numbers)
        elif isinstance(node, cst.Call):
            yield from self._called(node, facts, numbers)

    def _sized(self, node: cst.Call | cst.Subscript, facts: Facts) -> Iterator[Hit]:
        """Yield the draw by which a function of the loader gives its batch a size."""
        draw = drawn_size(node, facts)
        if draw is not None and is_first_use(node, draw, facts):
            message = (
                f"`{code(draw)}` is drawn on the host by the loader of each replica, and is the size of the "
                "batch: a compilation for each value, and replicas that draw differently wait for each other "
                "for ever; draw from the number of the batch, with one seed for all"
            )
            yield self.hit(draw, message)

    def _indexed(self, node: cst.Subscript, facts: Facts, counters: Numbers) -> Iterator[Hit]:
        for element in node.slice:
            part = element.slice
            bounds = [part.value] if isinstance(part, cst.Index) else []
            bounds += (
                [b for b in (part.lower, part.upper) if b] if isinstance(part, cst.Slice) else []
            )
            for bound in bounds:
                cut = len(bounds) == 1 and isinstance(part, cst.Slice)
                if cut and counters.is_random(bound, anywhere=True):
                    if facts.values.is_tensor(node.value):  # also of a batch that moves later
                        yield self._said(node, bound, "a slice bound", counters)
                    return
                if not counters.changes(bound):
                    continue
                if isinstance(part, cst.Index) and _is_list(bound, facts, counters):
                    return  # which goes to the device as data
                if _is_on_device(node.value, facts):
                    what = "an index" if isinstance(part, cst.Index) else "a slice bound"
                    yield self._said(node, bound, what, counters)
                return

    def _called(self, node: cst.Call, facts: Facts, counters: Numbers) -> Iterator[Hit]:
        name = facts.names.of(node.func) or ""
        joins = name in JOINS or (not name and code(node.func) == "sum")
        held = growing_list(node, facts) if joins else None
        if held is not None:
            yield from self._grown(node, held, facts)
            return
        if joins and (longer := grown_tensor(node, facts)) is not None:
            yield from self._lengthened(node, longer, facts)
            return
        sizes = made_sizes(node, facts)
        if sizes:
            device = keyword(node, "device")
            if device is None or not (
                facts.values.on_device(node) or _is_where_a_tensor_is(device.value, node, facts)
            ):
                return
            for size in sizes:
                if counters.changes(size):
                    what = "a bound" if name == "torch.arange" else "a size"
                    yield self._said(node, size, what, counters)
                    return
            return
        called = name[6:] if name.startswith("torch.") else method(node)
        if called in RESIZED:
            if facts.values.is_tensor(node.args[0].value if node.args else None):
                by_position = [arg for arg in node.args if arg.keyword is None and not arg.star]
                for at, word in enumerate(("size", "scale_factor"), 1):
                    resized = keyword(node, word)
                    if resized is None and at < len(by_position):
                        resized = by_position[at]
                    if resized is not None and counters.changes(resized.value):
                        yield self._said(node, resized.value, f"`{word}`", counters)
            return
        if called not in PLACES or (name and not name.startswith("torch.")):
            return
        args = [arg.value for arg in node.args if arg.keyword is None]
        value, at = (
            (args[0] if args else None, PLACES[called] + 1)
            if name
            else (receiver(node), PLACES[called])
        )
        if at < len(args) and facts.values.on_device(value) and counters.changes(args[at]):
            yield self._said(node, args[at], f"an argument of `{called}`", counters)

    def _grown(self, node: cst.Call, held: cst.Name, facts: Facts) -> Iterator[Hit]:
        """Yield what makes one tensor of a list that grows, in each turn of a loop, or in some."""
        when = facts.steps.when(node)
        if when is When.ELSEWHERE and evaluating_loop(node, facts) is None:
            return
        message = (
            f"`{held.value}` gets one tensor more in each turn, and `{code(node)}` has as many operands: a "
            "compilation for each; add to one tensor, `total += x.detach()`, and read that"
        )
        yield self.hit(node, message, Severity.INFO if when is When.SOMETIMES else self.severity)

    def _lengthened(
        self, node: cst.Call, longer: cst.BaseExpression, facts: Facts
    ) -> Iterator[Hit]:
        """Yield what makes a tensor longer in each turn of a loop that generates or evaluates."""
        loop = facts.context.loop_around(node)
        if facts.steps.when(node) is not When.ELSEWHERE or loop is None:
            return
        if not without_gradients(node, facts) or facts.context.effects.on_cpu(loop) == 0:
            return
        name = code(longer)
        kept = {id(below) for below in (longer, *nodes(node))}
        read = any(
            code(mention) == name and id(mention) not in kept
            for mention in nodes_of(loop.body, cst.Name | cst.Attribute)  # type: ignore[arg-type]
        )
        mend = (
            "make it once for the longest, write at a position that is a tensor (index_copy_), mask the rest"
            if read
            else "append to a list, and join that once after the loop"
        )
        message = (
            f"`{name}` is longer in each turn, and each length is a compilation of what computes with it; "
            f"{mend}"
        )
        yield self.hit(node, message)

    def _said(
        self, node: cst.CSTNode, number: cst.BaseExpression, what: str, numbers: Numbers
    ) -> Hit:
        if numbers.is_random(number, anywhere=True):
            message = (
                f"`{code(number)}` is drawn on the host and is {what} in the graph: a compilation for each "
                "value, and replicas that draw differently wait for each other for ever; draw on the "
                "device, and mask or look up by tensors"
            )
            return self.hit(node, message)
        message = (
            f"`{code(number)}` changes at each step and is {what} in the graph: a compilation for each "
            "value; make it a tensor on the device, or read the table on the host before the loop"
        )
        return self.hit(node, message)


def _is_where_a_tensor_is(device: cst.BaseExpression, call: cst.Call, facts: Facts) -> bool:
    """Whether `call`, in a step, makes its tensor where another one of the step is: `device=x.device`."""
    named = isinstance(device, cst.Attribute) and device.attr.value == "device"
    return named and facts.steps.inside(call)


def made_sizes(call: cst.Call, facts: Facts) -> list[cst.BaseExpression]:
    """Return the sizes, or the bounds, of a tensor that torch makes; empty for any other call."""
    name = facts.names.of(call.func) or ""
    if not name.startswith("torch.") or name[6:] not in SIZED:
        return []
    named = keyword(call, "size")
    plain = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    sizes = plain[:1] if name == "torch.full" else plain
    sizes += [named.value] if named is not None else []
    parts = [e.value for s in sizes if isinstance(s, cst.Tuple | cst.List) for e in s.elements]
    return [*sizes, *parts]


class Numbers:
    """Numbers that are others in the next graph: counters, and random numbers of the host in a step."""

    def __init__(self, facts: Facts, node: cst.CSTNode) -> None:
        self._counters = counters_of(facts)
        self._drawn = drawn_of(facts)
        self._facts = facts
        self._node = node

    def changes(self, number: cst.BaseExpression) -> bool:
        """Whether `number` is another one in the next graph."""
        return self._counters.changes(number) or self.is_random(number)

    def is_random(self, number: cst.BaseExpression, anywhere: bool = False) -> bool:
        """Whether the host draws `number` at random, in a step; `anywhere` in a training loop."""
        when = self._facts.steps.when(self._node)
        here = when is When.STEP or (anywhere and when is not When.ELSEWHERE)
        return here and self._drawn.is_drawn(number) and not is_transform(self._node, self._facts)


def _is_list(index: cst.BaseExpression, facts: Facts, numbers: Numbers, depth: int = 3) -> bool:
    """Whether `index` is a list, or an array, of a length that does not change: `randperm(n).tolist()`."""
    if isinstance(index, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(index)]
        return bool(values and depth) and all(
            value is not None and _is_list(value, facts, numbers, depth - 1) for value in values
        )
    if isinstance(index, cst.Subscript) and len(index.slice) == 1:
        cut = index.slice[0].slice
        if not isinstance(cut, cst.Slice) or not _is_list(index.value, facts, numbers, depth):
            return False
        return not any(
            numbers.changes(bound) for bound in (cut.lower, cut.upper) if bound is not None
        )
    if isinstance(index, cst.ListComp):
        loop = index.for_in
        tests = any(numbers.changes(test.test) for test in loop.ifs)
        as_many = _is_list(loop.iter, facts, numbers, depth) or not (
            numbers.changes(loop.iter) or _changes_within(loop.iter, numbers)
        )
        return as_many and not tests
    if not isinstance(index, cst.Call):
        return False
    if any(_changes_within(arg.value, numbers) for arg in index.args):
        return False  # as many as are drawn
    name = facts.names.of(index.func) or ""
    if method(index) == "tolist":
        base = receiver(index)
        sized = isinstance(base, cst.Call) and not any(
            _changes_within(arg.value, numbers) for arg in base.args
        )
        return sized and _has_axis(base, facts)
    if code(index.func) in ("list", "sorted", "tuple") and not name and index.args:
        return _is_list(index.args[0].value, facts, numbers, depth)
    return name in LISTS


def _changes_within(value: cst.BaseExpression, numbers: Numbers) -> bool:
    parts = [value, *(e.value for e in getattr(value, "elements", ()))]
    if isinstance(value, cst.Call) and code(value.func) == "range":
        parts += [arg.value for arg in value.args]
    return any(numbers.changes(part) for part in parts)


def _has_axis(base: cst.CSTNode, facts: Facts) -> bool:
    """Whether a draw gives several numbers: `torch.randperm(n)`, not `torch.randint(9, ())`."""
    return isinstance(base, cst.Call) and facts.names.of(base.func) in PERMUTATIONS


def _is_on_device(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a tensor on the device, or a buffer of a module."""
    if isinstance(value, cst.Name) and any(
        isinstance(assignment.value, cst.List | cst.Tuple | cst.ListComp | cst.Dict)
        for assignment in facts.bindings.given(value)
    ):
        return False  # a Python list is indexed on the host
    if facts.values.on_device(value):
        return True
    around = facts.context.class_around(value)
    if around is None or not code(value).startswith("self."):
        return False
    return any(
        method(call) == "register_buffer"
        and bool(call.args)
        and string_value(call.args[0].value) == code(value)[5:]
        for call in facts.below(around.body, cst.Call)
    )
