"""Lengths, sizes and loop counts that the data decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.words import READS
from migrate.check.common import method, placed, receiver, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import NEW_SHAPE
from migrate.check.reads import is_read
from migrate.check.rules.shapes.step_number import made_sizes
from migrate.model.calls.kind import TENSORS
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How
from migrate.reading.steps.evaluating import evaluating_loop
from migrate.reading.steps.in_step import When
from migrate.reading.values.devices import is_move
from migrate.syntax.tree import code, keyword, nodes_of

PADS = frozenset({"torch.nn.functional.pad"})
PACKED = frozenset({"torch.nn.utils.rnn.pack_padded_sequence", "torch.nn.utils.rnn.pack_sequence"})
ADVICE = "a compilation for each; pad to a few lengths and mask"
# Methods with sizes as arguments, and functions of torch with them as the second argument.
SIZED = frozenset({"expand", "narrow", "repeat", "reshape", "split", "view"})
NUMBERS = READS | {"numpy"}
CALLS = frozenset({"int", "max", "min", "round", "sum"})
# Functions whose result has the elements of their argument.
CONTAINERS = frozenset({"enumerate", "list", "reversed", "sorted", "tuple", "zip"})
DEEPEST = 5


class VaryingLength(Hazard):
    """A length, a size or a number of turns is read from a tensor of the batch, or is a number of the batch.

    **Why.** As a slice bound, a size or a number of turns the value is a part of the graph: every new one
    compiles again. `x[:, :k]`, `torch.ones(k, k, device=device)` and `topk(k)`: measured, one compilation for
    each k. A tensor of the device is fetched for it as well. Replicas whose numbers differ run different
    graphs, and wait for each other in the next collective (measured: simulated replicas part). So do batches
    that are lists, cut to as many images as the batch says: `views[:n]`, or `del views[-1]` while there are
    more.

    **What to do.** Pad to a few fixed lengths in the data loader (`shims.pad_collate`,
    `shims.BucketSampler`), and mask. `F.pad` by the largest amount, and cut off the same everywhere. A mask
    of documents is made on the host, in the `collate_fn`, or compares the number of each token's document:
    `document[:, :, None] == document[:, None]` has one shape. Let all replicas draw the same number for a
    turn (`random.Random(seed + turn)`), from a few.
    """

    code = "XLA107"
    name = "varying-length"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = NEW_SHAPE
    nodes = (cst.Call, cst.Slice, cst.While)
    examples = (
        example(
            """
            import torch
            from torch.nn.utils.rnn import pack_padded_sequence


            class Encoder(torch.nn.Module):
                def forward(self, x, lengths):
                    lengths = lengths.long()
                    x = x[:, : int(lengths.max())]  # XLA107
                    for t in range(lengths.max().item()):  # XLA107
                        x = x + t
                    return pack_padded_sequence(x, lengths)  # XLA107
            """
        ),
        example(
            """
            import torch


            class Queue(torch.nn.Module):
                def __init__(self, size):
                    super().__init__()
                    self.register_buffer("queue", torch.zeros(8, size))
                    self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

                @torch.no_grad()
                def put(self, keys):
                    start = int(self.pointer)
                    end = start + keys.shape[0]
                    self.queue[:, start:end] = keys.T  # XLA107
                    self.pointer[0] = end % self.queue.shape[1]

                def forward(self, keys):
                    self.put(keys)
                    return self.queue.clone()
            """
        ),
        example(
            """
            import torch


            class Attention(torch.nn.Module):
                def forward(self, x, kv_cache, start=0):
                    end = start + x.shape[1]
                    if start > 0:
                        last = kv_cache["local"].item() + end
                    else:
                        last = end
                    first = last - x.shape[1]
                    kv_cache["k"][:, first:last] = x  # XLA107
                    return kv_cache["k"][:, max(0, last - 4) : end].mean(1)  # XLA107
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Augment(torch.nn.Module):
                def forward(self, images):
                    margin = torch.rand([2], device=images.device) * 3
                    left, right = margin.ceil().to(torch.int32)
                    images = F.pad(input=images, pad=[left, right, 2, 2])  # XLA107
                    size = int(images.sum())
                    return F.pad(images, (0, size))  # XLA107


            class Padded(torch.nn.Module):
                def forward(self, x):
                    return F.pad(x, (0, 4 - x.shape[-1] % 4))
            """
        ),
        example(
            """
            import torch


            def mask_of(lengths: list, device="cpu"):
                parts = []
                for n in lengths:
                    parts.append(torch.tril(torch.ones(n, n, device=device)))  # XLA107
                return torch.block_diag(*parts)


            def train(model, loader, optimizer, sizes):
                for batch in loader:
                    x = batch["x"].cuda()
                    mask = torch.stack([mask_of(lengths, "cuda") for lengths in batch["lengths"]])
                    bias = torch.tril(torch.ones(max(batch["counts"]), 8)).cuda()  # XLA107
                    parts = x.split(batch["counts"], dim=1)  # XLA107
                    scales = [torch.ones(n, x.shape[1], device="cuda") for n in sizes]
                    rows = torch.zeros(len(x), device="cuda")
                    loss = model(x, mask, bias, parts, scales, rows)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                for x, lengths, counts in loader:
                    x, lengths, counts = x.cuda(), lengths.cuda(), counts.cuda()
                    n, k = lengths.max(), counts.max()
                    rows = torch.zeros(n, device="cuda")  # XLA107
                    again = torch.ones(n, 4, device="cuda")
                    other = torch.zeros(k, device="cuda")  # XLA107
                    loss = model(x.repeat(n, 1), rows, again, other)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def cut(views, last):
                count, others = views[0]["counts"][0].cpu().numpy()
                while len(views) > count:  # XLA107
                    del views[-1]
                while len(views) > 2:
                    views.pop()
                while count > 0:
                    count -= 1
                return views[:others], views[: len(last)]  # XLA107


            def train(model, loader, optimizer, last):
                for views in loader:
                    views, rest = cut(views, last)
                    x = torch.stack([view["image"].cuda() for view in views])
                    loss = model(x, rest)
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            class Encoder(torch.nn.Module):
                def forward(self, x):
                    half = x.shape[1] // 2
                    for t in range(x.size(0)):
                        x = x + t
                    return x[:, :half], x[: x.size(0) - 1]


            def head(rows, lengths):
                return rows[: int(max(lengths))]
            """
        ),
    )
    mended = example(
        """
        import torch


        class Encoder(torch.nn.Module):
            def forward(self, x, lengths):
                # the loader pads to one of a few lengths
                inside = torch.arange(x.shape[1], device=x.device) < lengths.view(-1, 1)
                return x * inside.unsqueeze(-1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one slice, loop count, size or packed sequence."""
        if isinstance(node, cst.While):
            yield from self._shortened(node, facts)
            return
        if isinstance(node, cst.Slice):
            begin = node.lower
            if begin is not None and (size := _window(node, facts)) is not None:
                text = (
                    f"a window begins at `{code(begin)}`, which is read from a tensor: a compilation for "
                    f"each; leave it a tensor: `index = ({code(begin)} + torch.arange({size}, device=…)) % "
                    "length`, then `x.index_copy(dim, index, values)` or `x.index_select(dim, index)`"
                )
                yield from placed(self, begin, _read(begin, facts), text, facts)
                return
            for bound in (node.lower, node.upper):
                value = _read(bound, facts) if bound is not None else None
                if bound is not None and value is not None:
                    text = f"`{code(bound)}` as a slice bound is read from a tensor"
                    yield from self._hits(bound, value, text, facts)
            return
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) in PACKED:
            data = node.args[0].value if node.args else None
            text = "a packed sequence has its lengths in the graph"
            yield from self._hits(node, data, text, facts)
        elif facts.names.of(node.func) in PADS:
            yield from self._pad(node, facts)
        elif isinstance(node.func, cst.Name) and node.func.value == "range":
            for arg in node.args[:2]:
                value = _read(arg.value, facts)
                if value is not None:
                    text = f"`{code(node)}`: the number of turns is read"
                    yield from self._hits(node, value, text, facts)
        else:
            yield from self._sized(node, facts)

    def _shortened(self, node: cst.While, facts: Facts) -> Iterator[Hit]:
        """Yield a loop that takes elements from a list until as many are left as the data says."""
        test = node.test
        if not isinstance(test, cst.Comparison):
            return
        sides = [test.left, *(part.comparator for part in test.comparisons)]
        lists = {code(side.args[0].value) for side in sides if _is_length(side)}
        deletes = any(_deletes_from(part, lists) for part in nodes_of(node.body, cst.Del))
        if not deletes and not any(
            _pops_from(part, lists) for part in nodes_of(node.body, cst.Call)
        ):
            return
        for side in sides:
            value = _read(side, facts)
            if value is not None:
                text = f"`{code(side)}`, the number of elements that stay, is read from a tensor"
                yield from self._hits(test, value, text, facts)
                return

    def _sized(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a call that makes a tensor of the device, or another shape of one, in a size of the data.

        Of the calls of a function whose sizes come from the same tensor the first is reported.
        """
        cause = _cause_of_size(node, facts)
        if cause is None:
            return
        elsewhere = facts.steps.when(node) is When.ELSEWHERE
        if elsewhere and evaluating_loop(node, facts) is None:
            return
        around = facts.context.function_around(node)
        for call in nodes_of(around.body, cst.Call) if around is not None else ():
            earlier = _cause_of_size(call, facts) if call is not node else None
            if earlier is not None and earlier.deep_equals(cause) and _is_above(call, node, facts):
                return
        text = f"`{code(cause)}` is data, and decides a size in the graph"
        yield from varying(self, node, node, f"{text}: {ADVICE}", facts)

    def _pad(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a call that pads by what is read from a tensor, once."""
        amounts = keyword(node, "pad") or (node.args[1] if len(node.args) > 1 else None)
        if amounts is None or not isinstance(amounts.value, cst.List | cst.Tuple):
            return
        for element in amounts.value.elements:
            value = _read(element.value, facts)
            if value is not None:
                text = f"`{code(element.value)}` of `F.pad` is read from a tensor"
                yield from self._hits(node, value, text, facts)
                return

    def _hits(
        self, node: cst.CSTNode, value: cst.CSTNode | None, what: str, facts: Facts
    ) -> Iterator[Hit]:
        message = f"{what}: {ADVICE}"
        yield from placed(self, node, value, message, facts)


def _window(node: cst.Slice, facts: Facts) -> str | None:
    """Return the width of a slice that begins where a tensor says: `n` of `x[at : at + n]`.

    None if the slice has another form, or a tensor decides the width, too.
    """
    if node.lower is None or _read(node.lower, facts) is None:
        return None
    end = node.upper
    if isinstance(end, cst.Name) and (binding := facts.bindings.nearest(end)) is not None:
        end = binding.value if isinstance(binding.value, cst.BaseExpression) else None
    if not isinstance(end, cst.BinaryOperation) or not isinstance(end.operator, cst.Add):
        return None
    for begin, width in ((end.left, end.right), (end.right, end.left)):
        if begin.deep_equals(node.lower) and _read(width, facts) is None:
            return code(width)
    return None


def _is_length(node: cst.BaseExpression) -> TypeGuard[cst.Call]:
    """Whether `node` is `len(…)` of something."""
    return isinstance(node, cst.Call) and code(node.func) == "len" and len(node.args) == 1


def _deletes_from(node: cst.Del, lists: set[str]) -> bool:
    """Whether `node` takes an element from one of `lists`: `del views[-1]`."""
    return isinstance(node.target, cst.Subscript) and code(node.target.value) in lists


def _pops_from(call: cst.Call, lists: set[str]) -> bool:
    """Whether `call` takes an element from one of `lists`: `views.pop()`."""
    return method(call) == "pop" and code(receiver(call)) in lists


def _cause_of_size(node: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the tensor from which a size of what `node` makes on the device is read, if any is."""
    sizes = made_sizes(node, facts)
    if sizes:
        is_placed = facts.values.on_device(node) or _goes(node, facts)
    else:
        sizes, is_placed = _given_sizes(node, facts)
    if not sizes or not is_placed:
        return None
    causes = (_read(size, facts, elements=True) for size in sizes)
    return next((cause for cause in causes if cause is not None), None)


def _is_above(call: cst.Call, node: cst.Call, facts: Facts) -> bool:
    """Whether `call` stands before `node` in the source."""
    first, second = facts.context.position(call), facts.context.position(node)
    return (first.line, first.column) < (second.line, second.column)


def _given_sizes(node: cst.Call, facts: Facts) -> tuple[list[cst.BaseExpression], bool]:
    """Return the sizes of `x.split(sizes)` or `torch.split(x, sizes)`, and whether `x` is on the device."""
    name = facts.names.of(node.func) or ""
    called = name[6:] if name.startswith("torch.") else method(node)
    if called not in SIZED or (name and not name.startswith("torch.")):
        return [], False
    plain = [arg.value for arg in node.args if not arg.star]
    value, sizes = (plain[0] if plain else None, plain[1:]) if name else (receiver(node), plain)
    return _parts(sizes), facts.values.on_device(value)


def _parts(sizes: Iterable[cst.BaseExpression]) -> list[cst.BaseExpression]:
    """Return sizes, with the elements of the tuples and lists among them in their place."""
    parts: list[cst.BaseExpression] = []
    for size in sizes:
        if isinstance(size, cst.Tuple | cst.List):
            parts += (element.value for element in size.elements)
        else:
            parts.append(size)
    return parts


def _goes(maker: cst.CSTNode, facts: Facts) -> bool:
    """Whether a tensor of the host is moved where it is made: `torch.tril(torch.ones(n, n)).to(device)`."""
    below = maker
    for above in facts.context.ancestors(maker):
        if isinstance(above, cst.Call) and is_move(above, facts.context):
            return below is above.func
        of_torch = (
            isinstance(above, cst.Call) and (facts.names.of(above.func) or "")[:6] == "torch."
        )
        own = isinstance(above, cst.Call) and below is above.func
        if not own and not of_torch and not isinstance(above, cst.Arg | cst.Attribute):
            return False
        below = above
    return False


def _read(
    bound: cst.BaseExpression, facts: Facts, depth: int = 0, elements: bool = False
) -> cst.BaseExpression | None:
    """Return the tensor from which a value in `bound` is read, if any is.

    Args:
        bound: the number.
        facts: the script.
        depth: number of names followed so far.
        elements: whether an element of what is read as a whole counts: `for n in lengths.tolist()`.
    """
    if facts.values.is_tensor(bound):
        return bound
    for call in facts.below(bound, cst.Call):
        source = _source(call)
        reads = method(call) in NUMBERS and facts.values.is_tensor(source)
        if reads or is_read(call, facts):
            return source if reads else receiver(call)
        plain = isinstance(call.func, cst.Name) and call.func.value == "int"
        if plain and call.args and facts.values.is_tensor(call.args[0].value):
            return call.args[0].value
    if isinstance(bound, cst.BinaryOperation):
        return _read(bound.left, facts, depth, elements) or _read(
            bound.right, facts, depth, elements
        )
    if isinstance(bound, cst.Call) and code(bound.func) in CALLS | CONTAINERS:
        parts = (_read(arg.value, facts, depth, elements) for arg in bound.args)
        return next((part for part in parts if part is not None), None)
    if isinstance(bound, cst.ListComp | cst.GeneratorExp):
        return _read(bound.elt, facts, depth, elements)
    if isinstance(bound, cst.Name) and depth < DEEPEST:
        for assignment in facts.bindings.reaching(bound):
            value, is_element = assignment.value, assignment.how is How.ELEMENT
            if value is None or not (is_element or assignment.how in (How.VALUE, How.PART)):
                continue
            has_read = any(method(call) in READS for call in facts.below(value, cst.Call))
            if assignment.how is How.PART and not _is_numbers(value):
                continue  # a part of a tuple may be anything
            if elements or not is_element or not has_read:
                read = _read(value, facts, depth + 1, elements)
                if read is not None:
                    return read
        return _passed(bound, facts, depth + 1, elements)
    return None


def _is_numbers(value: cst.BaseExpression) -> bool:
    """Whether `value` is the numbers of one tensor, or a part of these: `x.cpu().numpy()[0]`."""
    while isinstance(value, cst.Subscript):
        value = value.value
    return isinstance(value, cst.Call) and method(value) in NUMBERS


def _source(read: cst.Call) -> cst.BaseExpression:
    """Return the tensor of which `read` gives the numbers: `x` of `x.detach().cpu().numpy()`."""
    source: cst.BaseExpression = read
    while isinstance(source, cst.Call) and method(source) in NUMBERS | {"cpu", "detach"}:
        source = receiver(source)
    return source


def _passed(name: cst.Name, facts: Facts, depth: int, elements: bool) -> cst.BaseExpression | None:
    """Return what calls pass for the parameter `name`, if it is read from a tensor or is a part of a batch.

    A batch counts as tensors. What it passes for `lengths: list` is a list of its numbers.
    """
    parameter = facts.bindings.parameter(name)
    if parameter is None:
        return None
    function = parameter[0]
    for value in facts.bindings.passed(function, name.value):
        read = _read(value, facts, depth, elements)
        if read is not None:
            return read
    entry = facts.entries.get(facts.context.position(function.name).line)
    handed = entry.kinds(function, name.value) if entry is not None else ()
    return name if TENSORS & {*handed} else None
