"""Batches padded to their own longest sample, or of as many rows as their samples happen to have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.libraries import BATCHES_BY_LENGTH, GRAPH_BATCHES
from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import NEW_SHAPE
from migrate.check.rules.shapes.largest_sizes import (
    DEPTH,
    FILLED,
    first_of,
    is_left_as_lists,
    largest_sizes,
    sizes_in,
)
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import How
from migrate.reading.steps.batch_lists import lists_of_parts
from migrate.syntax.tree import (
    code,
    is_attribute_of_self,
    keyword,
    last_part,
    nodes,
    nodes_of,
    string_value,
)

COLLATORS = (
    "DataCollatorWithPadding",
    "DataCollatorForTokenClassification",
    "DataCollatorForSeq2Seq",
)
JOINS = frozenset(
    {
        *(f"torch.{name}" for name in ("cat", "concat", "concatenate", "hstack", "vstack")),
        *(f"numpy.{name}" for name in ("concatenate", "hstack", "vstack")),
    }
)
ROWS = frozenset({"torch.stack", "torch.tensor", "torch.as_tensor", "numpy.array", "numpy.stack"})
LARGEST = frozenset(
    f"{library}.{name}" for library in ("torch", "numpy") for name in ("max", "amax")
)
ARANGES = frozenset({"torch.arange", "numpy.arange"})
SIZED = frozenset({"expand", "narrow", "new_empty", "new_full", "new_ones", "new_zeros"})
ROUNDS = re.compile(r"ceil|round|bucket|multiple|power", re.IGNORECASE)
PADS = re.compile("^pad|_pad")
# Calls that make a tensor or an array of a list.
MAKES_TENSOR = frozenset(
    {
        *(f"torch.{name}" for name in ("tensor", "as_tensor", "FloatTensor", "LongTensor")),
        *("numpy.array", "numpy.asarray"),
    }
)
BATCHES = frozenset({"batch", "samples", "examples", "instances", "features", "data_list"})

# Functions whose result is as long as the values say, and methods that keep its number of elements.
OF_VALUES = frozenset({"torch.argwhere", "torch.masked_select", "torch.nonzero"})
KEEP_NUMBER = frozenset(
    {
        "clone",
        "contiguous",
        "flatten",
        "int",
        "long",
        "ravel",
        "reshape",
        "squeeze",
        "t",
        "to",
        "view",
    }
)

REPLICAS = "replicas with batches of other lengths may wait for each other"
PAD = "pad to one length, or to a few that all replicas take together (`shims.BucketSampler`)"
AS_LISTS = (
    "hands on lists with a part of each sample: where these differ in length, as the boxes of images do, "
    "each batch is a compilation, and replicas differ; pad and stack them"
)


class Padding(Hazard):
    """Batches are padded to their own longest sample, or hold as many rows as their samples have.

    **Why.** Nearly every batch has a length of its own then, and every length is a compilation of the
    whole step. Replicas get batches of different lengths, run different graphs, and may wait for each other
    forever in the collectives of these graphs.

    **What to do.** Pad to one length: `padding="max_length"`. Or pad to one of a few: `shims.pad_collate`,
    `pad_to_multiple_of=128`. On several replicas, `shims.BucketSampler` gives all of them the same length in
    each step. Samples that a `collate_fn` puts one after another by `torch.cat` are padded
    to a fixed number of rows in all, with a mask. The indices of a mask, `mask.nonzero()`, are padded to a
    fixed number too, or the mask itself is handed out.

    A batch that is made in the size of the largest sample, `torch.zeros([len(images)] + largest)`, is padded
    to one of a few sizes. Lists that are left as they are, `tuple(zip(*batch))`, are information too; so are
    the lists in what is returned, `return images, [sample[1] for sample in batch]`.

    A length that the function rounds up is one of a few, but replicas round up the lengths of other batches:
    it is reported in projects that use several processes. Nothing is reported where the function pads on to a
    fixed length, or where each object of its class is made with one (`self.size or max(lengths)`).
    A dataset that packs samples into lists until these are long enough is reported, unless it cuts or pads
    them to a number of elements.

    Samplers of lhotse and speechbrain that fill a batch by its length in seconds give batches of any length
    and number of samples.
    Loaders of torch_geometric and DGL join the graphs of a batch, which have other numbers of nodes and
    edges: both are padded to one of a few numbers, by nodes of their own that the loss leaves out.
    `torch.cat` in a function that keeps no lengths is information: the samples may be equally long.
    """

    code = "XLA109"
    name = "padding"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = NEW_SHAPE
    is_mentioned = True
    nodes = (cst.Call, cst.Return)
    examples = (
        example(
            """
            from torch.nn.utils.rnn import pad_sequence
            from transformers import DataCollatorWithPadding


            def collate_fn(samples):
                return pad_sequence(samples, batch_first=True)  # XLA109


            def tokenize(tokenizer, texts):
                return tokenizer(texts, padding=True, return_tensors="pt")  # XLA109


            def make(tokenizer):
                return DataCollatorWithPadding(tokenizer)  # XLA109
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import DataLoader


            def pack(samples):
                rows = [sample["points"] for sample in samples]
                counts = torch.tensor([len(row) for row in rows])
                return torch.cat(rows, dim=0), counts  # XLA109


            class Collator:
                def __call__(self, samples):
                    longest = max(len(sample) for sample in samples)  # XLA109
                    batch = torch.zeros(len(samples), longest)
                    for row, sample in zip(batch, samples):
                        row[: len(sample)] = sample
                    return batch


            def flat(samples):
                parts = []
                for sample in samples:
                    parts.append(sample["points"])
                return torch.cat(parts)  # XLA109 info


            loaders = [
                DataLoader(data, collate_fn=pack),
                DataLoader(data, collate_fn=Collator()),
                DataLoader(data, collate_fn=flat),
            ]
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F
            from torch.nn.utils.rnn import pad_sequence


            def collate(samples, length=512):
                ids = pad_sequence(samples, batch_first=True)
                return F.pad(ids, (0, length - ids.shape[1]))


            def collate_rounded(samples):
                longest = max(len(sample) for sample in samples)
                longest = (longest + 127) // 128 * 128
                return torch.stack([F.pad(x, (0, longest - len(x))) for x in samples])


            def collate_images(samples):
                labels = max(label for _, label in samples)
                return torch.cat([image.unsqueeze(0) for image, _ in samples]), labels


            def join(parts):
                return torch.cat([part for part in parts])
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import DataLoader


            def cut(samples):
                rows, lengths = zip(*samples)
                longest = int(max(lengths))  # XLA109
                rows = torch.stack(rows)[:, :longest]
                return rows, torch.arange(longest) < torch.stack(lengths)[:, None]


            def cut_by_mask(samples):
                rows = torch.stack([sample["ids"] for sample in samples])
                masks = torch.stack([sample["mask"] for sample in samples])
                count = masks.sum(1).max().item()  # XLA109
                return rows.narrow(1, 0, count), masks[..., :count]


            def cut_to_few(samples):
                rows, lengths = zip(*samples)
                longest = (int(max(lengths)) + 127) // 128 * 128
                return torch.stack(rows)[:, :longest]


            def scaled(samples):
                rows = torch.stack(samples)
                largest = rows.abs().max()
                return rows[:, :512] / largest


            loaders = [
                DataLoader(data, collate_fn=cut, drop_last=True),
                DataLoader(data, collate_fn=cut_by_mask, drop_last=True),
                DataLoader(data, collate_fn=cut_to_few, drop_last=True),
                DataLoader(data, collate_fn=scaled, drop_last=True),
            ]
            """
        ),
        example(
            """
            import torch


            def largest_of(shapes):
                return [max(sizes) for sizes in zip(*shapes)]


            def collate_fn(batch):
                images, targets = list(zip(*batch))  # XLA109 info
                largest = largest_of([list(image.shape) for image in images])
                padded = torch.zeros([len(images)] + largest)  # XLA109
                for image, row in zip(images, padded):
                    row[:, : image.shape[1], : image.shape[2]].copy_(image)
                return padded, targets


            def collate_as_lists(batch):
                return tuple(zip(*batch))  # XLA109 info


            def collate_graphs(batch):
                rows, graphs, captions = [], [], []
                for sample in batch:
                    row, graph, caption = sample
                    rows.append(row)
                    graphs.append(graph)  # XLA109 info
                    captions.append(caption)
                return torch.stack(rows), graphs, captions
            """
        ),
        example(
            """
            import torch
            from transformers import DataCollatorWithPadding


            def tokenize(tokenizer, texts):
                conv = torch.nn.Conv2d(3, 3, 1, padding=True)
                return tokenizer(texts, padding="max_length", return_tensors="pt")


            def make(tokenizer):
                return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)
            """
        ),
        example(
            """
            import torch
            import torch.utils.data
            from torch_geometric.data import Batch
            from torch_geometric.loader import DataLoader, DenseDataLoader, RandomNodeLoader


            def load(graphs, images):
                rows = torch.utils.data.DataLoader(images, batch_size=8, drop_last=True)
                dense = DenseDataLoader(graphs, batch_size=8)
                options = {"dataset": graphs, "batch_size": 8}
                parts = RandomNodeLoader(graphs[0], num_parts=10)  # XLA109
                return rows, dense, parts, DataLoader(**options)  # XLA109


            def joined(graphs):
                return Batch.from_data_list(graphs)  # XLA109
            """
        ),
        example(
            """
            import torch
            from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset


            def load(cuts):
                sampler = DynamicBucketingSampler(cuts, max_duration=200, shuffle=True)  # XLA109
                data = K2SpeechRecognitionDataset()
                return torch.utils.data.DataLoader(data, sampler=sampler, batch_size=None)
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import IterableDataset


            class Packed(IterableDataset):
                def __iter__(self):
                    tokens, parts = [], {"places": [], "tokens": []}
                    for document in self.documents:
                        tokens.extend(document)
                        parts["places"].extend(range(len(document)))
                        if len(tokens) > 4096:
                            yield {"tokens": torch.tensor(tokens), "places": self.made(parts)}  # XLA109
                            tokens = []

                def made(self, parts):
                    return torch.tensor(parts["places"])


            def packed(documents, size):
                tokens = []
                for document in documents:
                    tokens += document
                    while len(tokens) >= size:
                        chunk, tokens = tokens[:size], tokens[size:]
                        yield torch.tensor(chunk)


            def padded(documents, size):
                tokens = []
                for document in documents:
                    if len(tokens) + len(document) > size:
                        yield torch.tensor(tokens + [0] * (size - len(tokens)))
                        tokens = []
                    tokens += document
            """
        ),
    )
    mended = example(
        """
        import torch
        from transformers import DataCollatorWithPadding


        def collate_fn(samples, length=512):
            rows = torch.zeros(len(samples), length, dtype=torch.long)
            for row, sample in zip(rows, samples):
                row[: len(sample)] = sample
            return rows


        def tokenize(tokenizer, texts):
            return tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")


        def make(tokenizer):
            return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=512)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that pads to the longest."""
        assert isinstance(node, cst.Call | cst.Return)
        if isinstance(node, cst.Return):
            if collating_function(node, facts) is not None:
                for part in lists_of_parts(node, facts):
                    yield self.hit(part, f"{code(part)} {AS_LISTS}", Severity.INFO)
            return
        name = facts.names.of(node.func) or ""
        message = f"pads to the longest of each batch: each length is a compilation, and {REPLICAS}; {PAD}"
        collates = collating_function(node, facts)
        if collates is not None and _pads_on(collates, facts):
            return
        if name in GRAPH_BATCHES:
            message = (
                f"{name.rpartition('.')[2]} joins the graphs of a batch: where these have other numbers of "
                "nodes or edges, each batch is a compilation; pad both to one of a few numbers, and mask"
            )
            yield self.hit(node, message)
            return
        if name in BATCHES_BY_LENGTH:
            message = (
                f"{name.rpartition('.')[2]} fills each batch by length, so that batches differ in length and "
                f"in number: each is a compilation, and {REPLICAS}; pad to a few lengths with a fixed number "
                "of samples for each, which all replicas take together (`shims.BucketSampler`)"
            )
            yield self.hit(node, message)
            return
        if name == "torch.nn.utils.rnn.pad_sequence":
            yield self.hit(node, f"pad_sequence {message}")
            return
        if collates is not None:
            yield from self._in_collate(node, name, collates, facts)
            if _counts_values(node, name) and _is_handed_out(node, collates, facts):
                message = (
                    f"`{code(node)}` has as many elements as its values say: each batch has a number of its "
                    "own, which is a compilation; pad it to a fixed number, or hand out the mask"
                )
                yield self.hit(node, message)
        if name in MAKES_TENSOR and node.args and _is_packed(node, facts):
            message = (
                f"`{code(node)}` is as long as the samples that are packed into it: each length is a "
                f"compilation, and {REPLICAS}; cut or pad all to one length"
            )
            yield self.hit(node, message)
            return
        if keyword(node, "pad_to_multiple_of") is not None:
            return
        padding, tensors = keyword(node, "padding"), keyword(node, "return_tensors")
        longest = padding is not None and _is_longest(padding.value)
        if name.startswith("transformers.") and name.endswith(COLLATORS):
            if padding is None or longest:
                yield self.hit(node, f"{name.rpartition('.')[2]} {message}")
        elif longest and tensors is not None and string_value(tensors.value) == "pt":
            yield self.hit(node, f"padding={code(padding.value) if padding else ''} {message}")

    def _in_collate(
        self, call: cst.Call, name: str, function: cst.FunctionDef, facts: Facts
    ) -> Iterator[Hit]:
        """Yield what joins the samples of a batch, or asks for the longest of them."""
        if name in JOINS and call.args and _is_of_samples(call.args[0].value, function, facts):
            counts = any(_is_length(node) for node in nodes(function.body))
            if_so = "" if counts else "where samples differ in length, "
            message = (
                f"{code(call.func)} puts samples one after another: {if_so}each batch has a number of rows "
                "of its own, which is a compilation; pad to a fixed number"
            )
            yield self.hit(call, message, None if counts else Severity.INFO)
        elif name in ROWS and call.args and _is_extended(call.args[0].value, function):
            counts = any(_is_length(node) for node in nodes(function.body))
            if_so = "" if counts else "where samples differ in how many they have, "
            message = (
                f"`{code(call)}` has a row for each part of the samples: {if_so}each batch has a number of "
                f"rows of its own, which is a compilation, and {REPLICAS}; pad to a fixed number"
            )
            yield self.hit(call, message, None if counts else Severity.INFO)
        elif code(call.func) == "zip" and is_left_as_lists(call, function, facts):
            message = f"{code(call)} {AS_LISTS}"
            yield self.hit(call, message, Severity.INFO)
        elif name in FILLED and call.args:
            yield from self._of_own_shape(call, facts)
        elif _takes_largest(call, name):
            is_longest = code(call.func) == "max" and any(_lengths(call, facts))
            is_size = is_longest or _is_size(call, function, facts)
            if is_size:
                yield from self._of_longest(call, function, facts)

    def _of_longest(self, call: cst.Call, function: cst.FunctionDef, facts: Facts) -> Iterator[Hit]:
        """Yield a longest length that sizes a batch, by what is done with it first."""
        setting = _instead(call, facts)
        lengths = _settings(setting, function, facts) if setting is not None else frozenset()
        if lengths == {True}:
            return  # each object of the class is made with the fixed length
        severity = None if setting is None or lengths == {False} else Severity.INFO
        unless = "" if severity is None or setting is None else f", unless `{code(setting)}` is set"
        longest = f"`{code(call)}` is the longest of each batch"
        if not _is_rounded(call, function, facts):
            message = f"{longest}{unless}: each length is a compilation, and {REPLICAS}; {PAD}"
            yield self.hit(call, message, severity)
        elif facts.context.calls.replicated:
            message = (
                f"{longest}{unless}, and rounding it up leaves the replicas apart: batches of different "
                f"lengths in one step are different graphs, and replicas may wait for each other; {PAD}"
            )
            yield self.hit(call, message, severity)

    def _of_own_shape(self, call: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield the making of a batch of the largest sizes, which another function has compared."""
        function = facts.context.function_around(call)
        sizes = largest_sizes(call, facts)
        if sizes is None or not isinstance(function, cst.FunctionDef):
            return
        if _is_rounded(sizes, function, facts) or _is_rounded(call, function, facts):
            return
        if first_of(sizes, function, facts) is not call:
            return  # once for each size: not for the mask of the batch
        message = (
            f"`{code(sizes)}` is the size of the largest sample of each batch: a batch of that size is a "
            "compilation for each, and replicas with batches of their own differ; pad to one of a few sizes"
        )
        yield self.hit(call, message)


def _instead(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the length that is taken instead of the longest if it is set: `self.size or max(lengths)`."""
    below: cst.CSTNode = call
    for above in facts.context.ancestors(call):
        if isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.Or):
            return above.left if below is not above.left else None
        if isinstance(above, cst.IfExp) and below is not above.test:
            return above.orelse if below is above.body else above.body
        if isinstance(above, cst.BaseSmallStatement):
            return None
        below = above
    return None


def _settings(
    value: cst.BaseExpression, function: cst.FunctionDef, facts: Facts
) -> frozenset[bool]:
    """Return whether the constructions of the function's object set `self.size`: all, none, or unknown."""
    if not is_attribute_of_self(value) or not isinstance(value, cst.Attribute):
        return frozenset()
    line = facts.context.position(function.name).line
    owner = facts.context.class_around(function)
    names = {
        assigned.value
        for place, assigned in facts.context.attributes.get(value.attr.value, ())
        if isinstance(assigned, cst.Name) and facts.context.class_around(place) is owner
    }
    constructions = facts.context.calls.collating_settings.get(line, ())
    return (
        frozenset(not names.isdisjoint(passed) for passed in constructions)
        if names
        else frozenset()
    )


def collating_function(node: cst.CSTNode, facts: Facts) -> cst.FunctionDef | None:
    """Return the function around `node` that makes a batch of samples, as a `collate_fn`."""
    function = facts.context.function_around(node)
    if not isinstance(function, cst.FunctionDef):
        return None
    line = facts.context.position(function.name).line
    return function if line in facts.context.calls.collating else None


def _is_packed(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` makes a tensor of a list that a generator of batches extends by whole samples.

    One call of a generator is enough to report: its other lists go with it.
    """
    owner = _generating(call, facts)
    if owner is None or _pads(owner) or isinstance(facts.context.parent(call), cst.Attribute):
        return False
    calls = nodes_of(owner.body, cst.Call)
    packing = (c for c in calls if (facts.names.of(c.func) or "") in MAKES_TENSOR and c.args)
    first = next((c for c in packing if _is_extended(c.args[0].value, owner)), None)
    return first is call


def _generating(node: cst.CSTNode, facts: Facts) -> cst.ClassDef | cst.FunctionDef | None:
    """Return the class around `node` whose iterator yields, or the function around it that does."""
    below = facts.context.below
    class_ = facts.context.class_around(node)
    if class_ is not None and not any("Sampler" in code(base.value) for base in class_.bases):
        for method in below(class_.body, cst.FunctionDef):
            if method.name.value == "__iter__" and below(method.body, cst.Yield):
                return class_
    function = facts.context.function_around(node)
    if isinstance(function, cst.FunctionDef) and below(function.body, cst.Yield):
        return function
    return None


def _is_extended(value: cst.BaseExpression, owner: cst.ClassDef | cst.FunctionDef) -> bool:
    """Whether `value` is a list that grows by whole lists, and not up to a number of elements."""
    if not isinstance(value, cst.Name | cst.Subscript) or _entry(value) is None:
        return False
    entry = _entry(value)
    for comparison in nodes_of(owner.body, cst.Comparison):
        is_equal = any(isinstance(c.operator, cst.Equal) for c in comparison.comparisons)
        lengths = [
            c for c in nodes_of(comparison.left, cst.Call) if code(c.func) == "len" and c.args
        ]
        if is_equal and any(_entry(length.args[0].value) == entry for length in lengths):
            return False
    grown = [
        call.func.value
        for call in nodes_of(owner.body, cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "extend"
    ]
    grown += [
        added.target
        for added in nodes_of(owner.body, cst.AugAssign)
        if isinstance(added.operator, cst.AddAssign) and not isinstance(added.value, cst.BaseNumber)
    ]
    return any(_entry(target) == entry for target in grown)


def _entry(value: cst.BaseExpression) -> tuple[str, str] | None:
    """Return the name of a list, or the key under which a dictionary holds it."""
    if isinstance(value, cst.Name):
        return "name", value.value
    if isinstance(value, cst.Subscript) and len(value.slice) == 1:
        index = value.slice[0].slice
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        return ("key", key) if key is not None else None
    return None


def _pads(owner: cst.ClassDef | cst.FunctionDef) -> bool:
    """Whether something is padded: `F.pad(x, …)`, `[0] * (n - len(x))`."""
    if any(PADS.search(last_part(call.func)) for call in nodes_of(owner.body, cst.Call)):
        return True
    products = (
        part
        for part in nodes_of(owner.body, cst.BinaryOperation)
        if isinstance(part.operator, cst.Multiply) and isinstance(part.left, cst.List)
    )
    return any(
        isinstance(inner.operator, cst.Subtract)
        for product in products
        for inner in nodes_of(product.right, cst.BinaryOperation)
    )


def _counts_values(call: cst.Call, name: str) -> bool:
    """Whether the shape of what `call` gives depends on the values of a tensor: `mask.nonzero()`."""
    if name:
        return name in OF_VALUES or (name == "torch.where" and len(call.args) == 1)
    last = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return last in ("nonzero", "argwhere", "masked_select")  # only tensors and arrays have these


def _is_handed_out(call: cst.Call, function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether the function returns what `call` gives, by methods that keep the number of elements."""
    whole: cst.BaseExpression = call
    above = facts.context.parent(whole)
    while isinstance(above, cst.Attribute) and above.attr.value in KEEP_NUMBER:
        outer = facts.context.parent(above)
        if not isinstance(outer, cst.Call):
            break
        whole, above = outer, facts.context.parent(outer)
    if isinstance(above, cst.DictElement | cst.Element | cst.Return):
        return True
    if not isinstance(above, cst.AssignTarget | cst.Assign):
        return False
    names = [code(target.target) for target in nodes_of(above, cst.AssignTarget)]
    for name in facts.below(function.body, cst.Name):
        holder = facts.context.parent(name)
        if name.value in names and isinstance(holder, cst.DictElement | cst.Element | cst.Return):
            return True
    return any("[" in name for name in names)  # batch["indices"] = mask.nonzero()


def _pads_on(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether the function pads to a length that is no longest one: `F.pad(x, (0, n - len(x)))`."""
    for call in facts.below(function.body, cst.Call):
        name = facts.names.of(call.func) or ""
        if name != "torch.nn.functional.pad" or len(call.args) < 2:
            continue
        for part in nodes_of(call.args[1].value, cst.BinaryOperation):
            if isinstance(part.operator, cst.Subtract) and not _is_longest_of(part.left, facts):
                return True
    return False


def _is_longest_of(value: cst.BaseExpression, facts: Facts) -> bool:
    origins = [value]
    if isinstance(value, cst.Name):
        origins = [
            assignment.value
            for assignment in facts.bindings.given(value)
            if assignment.value is not None
        ]
    return any(
        sizes_in(origin, facts) is not None
        or any(code(call.func) == "max" for call in facts.below(origin, cst.Call))
        for origin in origins
    )


def _is_of_samples(value: cst.BaseExpression, function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether `value` is a list with a part of each sample, as it is."""
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        return not _has_one_row(value.elt)
    if isinstance(value, cst.Call) and code(value.func) in ("list", "tuple") and value.args:
        return _is_of_samples(value.args[0].value, function, facts)
    if isinstance(value, cst.Subscript | cst.Attribute):
        appended = list(_appended_to(value, function))
        return bool(appended) and not any(map(_has_one_row, appended))
    if not isinstance(value, cst.Name):
        return False
    put = facts.bindings.put_into(value)
    if put:
        return not any(_has_one_row(part.value) for part in put)
    assignments = [
        assignment for assignment in facts.bindings.given(value) if assignment.value is not None
    ]
    if assignments:
        return any(
            assignment.how is not How.VALUE or _is_of_samples(assignment.value, function, facts)
            for assignment in assignments
            if assignment.value is not None
        )
    parameters = function.params.params
    return any(parameter.name.value == value.value for parameter in parameters)


def _appended_to(
    value: cst.BaseExpression, function: cst.FunctionDef
) -> Iterator[cst.BaseExpression]:
    """Yield what the function appends to a list that an object holds: `batch[key].append(item)`."""
    held = code(value)
    for call in nodes_of(function.body, cst.Call):
        appends = isinstance(call.func, cst.Attribute) and call.func.attr.value == "append"
        if appends and call.args and code(cst.ensure_type(call.func, cst.Attribute).value) == held:
            yield call.args[0].value


def _has_one_row(part: cst.BaseExpression) -> bool:
    """Whether a sample's part is given a first axis of one, or is cut to a length: `x[None]`, `x[:n]`."""
    if isinstance(part, cst.Call):
        last = code(part.func).rpartition(".")[2]
        return last in ("unsqueeze", "tensor", "as_tensor", "expand_dims", "full", "zeros", "ones")
    if isinstance(part, cst.Subscript):
        index = part.slice[0].slice
        return isinstance(index, cst.Slice) or (
            isinstance(index, cst.Index) and code(index.value) in ("None", "np.newaxis")
        )
    return False


def _is_length(node: cst.CSTNode) -> bool:
    """Whether `node` asks for the length of a part of a sample: `len(x)`, `x.shape[0]`, `x.size(0)`."""
    if isinstance(node, cst.Call):
        called = code(node.func)
        inner = node.args[0].value if node.args else None
        if called == "len":
            return inner is not None and code(inner) not in BATCHES
        return called.endswith((".size", ".cumsum", ".numel"))
    return isinstance(node, cst.Attribute) and node.attr.value == "shape"


def _lengths(call: cst.Call, facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield what asks for lengths in the arguments of `max`, or in what they are bound to."""
    for arg in call.args:
        values: list[cst.BaseExpression] = [arg.value]
        if isinstance(arg.value, cst.Name):
            values = [
                assignment.value
                for assignment in facts.bindings.given(arg.value)
                if assignment.value is not None
            ]
            values += [addition.value for addition in facts.bindings.put_into(arg.value)]
        for value in values:
            yield from (node for node in nodes(value) if _is_length(node))


def _takes_largest(call: cst.Call, name: str) -> bool:
    """Whether `call` is a largest value: `max(lengths)`, `lengths.max()`, `torch.max(lengths)`."""
    if name:
        return name in LARGEST
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value in ("max", "amax")
    return code(call.func) == "max"


def _is_size(call: cst.Call, function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether the function cuts or makes tensors in the size that `call` gives: `x[:, : max(lengths)]`.

    The largest of whole shapes is reported where a batch of that shape is made.
    """
    if sizes_in(call, facts) is not None:
        return False
    return any(_follows(size, call, facts, DEPTH) for size in _sizes(function, facts))


def _sizes(function: cst.FunctionDef, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the ends of slices, and what makes, extends or pads a tensor is given as a size."""
    for node in nodes(function.body):
        if isinstance(node, cst.Slice) and node.upper is not None:
            yield node.upper
        elif isinstance(node, cst.Call):
            last = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
            if last in SIZED or (facts.names.of(node.func) or "") in FILLED | ARANGES:
                yield from (arg.value for arg in node.args)


def _follows(value: cst.BaseExpression, call: cst.Call, facts: Facts, depth: int) -> bool:
    """Whether `value` has `call` in it, or a name that is bound to such a value."""
    if any(node is call for node in facts.below(value, cst.Call)):
        return True
    return depth > 0 and any(
        assignment.how is How.VALUE
        and assignment.value is not None
        and _follows(assignment.value, call, facts, depth - 1)
        for name in facts.below(value, cst.Name)
        for assignment in facts.bindings.given(name)
    )


def _is_rounded(call: cst.Call, function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether the longest length is rounded up to one of a few, where it stands or by its name."""
    statement = facts.context.statement_around(call)
    places: list[cst.CSTNode] = [statement]
    names = {
        name.value
        for assign in facts.below(statement, cst.Assign)
        for target in assign.targets
        for name in facts.below(target, cst.Name)
    }
    places += [
        part
        for part in nodes_of(function.body, cst.BinaryOperation)
        if not names.isdisjoint({name.value for name in facts.below(part, cst.Name)})
    ]
    places += [
        part
        for part in facts.below(function.body, cst.Call)
        if facts.context.run_by(part)
        and not names.isdisjoint({code(arg.value) for arg in part.args})
    ]
    return any(
        isinstance(node, cst.FloorDivide | cst.Modulo)
        or (isinstance(node, cst.Call) and ROUNDS.search(code(node.func)))
        for place in places
        for node in nodes(place)
    )


def _is_longest(value: cst.BaseExpression) -> bool:
    return code(value) == "True" or string_value(value) == "longest"
