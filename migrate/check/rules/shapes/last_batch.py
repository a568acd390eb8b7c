"""A last batch that is shorter than the others."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.prescan import named
from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_other import DATA_LOADERS
from migrate.catalogue.words import OF_EVALUATION
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import NEW_SHAPE
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword

LOADERS = names(*DATA_LOADERS)


class LastBatch(Hazard):
    """The training loader keeps a last batch that is shorter than the others.

    **Why.** Its shape is new: the whole step is compiled once more, which on a TPU takes minutes for a
    large model. Once: the second epoch finds both graphs.

    **What to do.** `drop_last=True` on the training loader.
    """

    code = "XLA108"
    name = "last-batch"
    severity = Severity.INFO
    targets = BOTH
    on_torch_tpu = NEW_SHAPE
    is_mentioned = True
    nodes = (cst.Call,)
    words = named(LOADERS)
    examples = (
        example(
            """
            from torch.utils.data import DataLoader, RandomSampler

            train = DataLoader(images, batch_size=64, shuffle=True)  # XLA108
            train = DataLoader(images, batch_size=64, sampler=RandomSampler(images))  # XLA108
            drops = False
            train = DataLoader(images, batch_size=64, shuffle=True, drop_last=drops)  # XLA108
            """
        ),
        example(
            """
            from torch.utils.data import DataLoader

            train = DataLoader(images, batch_size=64, shuffle=True, drop_last=True)
            test = DataLoader(images, batch_size=64)
            other = DataLoader(images, batch_sampler=sampler)
            test_loader = DataLoader(images, batch_size=64, shuffle=True)
            whole = DataLoader(images, shuffle=True)
            peek = DataLoader(images, batch_size=64, shuffle=True)
            first = next(iter(peek))
            other = next(iter(DataLoader(images, batch_size=64, shuffle=True)))
            """
        ),
    )
    mended = example(
        """
        from torch.utils.data import DataLoader

        train = DataLoader(images, batch_size=64, shuffle=True, drop_last=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one loader that shuffles and drops nothing."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) not in LOADERS or any(arg.star for arg in node.args):
            return
        drops = keyword(node, "drop_last")
        if drops is not None and not _is_false(drops.value, facts):
            return
        if keyword(node, "batch_sampler") is not None:
            return
        batch = keyword(node, "batch_size")
        size = batch.value if batch is not None else None
        if size is None and len(node.args) > 1 and node.args[1].keyword is None:
            size = node.args[1].value
        if size is None or code(size) in ("1", "None"):
            return  # one sample at a time: no batch is shorter
        above = facts.context.parent(node)
        names = [code(target.target).lower() for target in getattr(above, "targets", ())]
        if any(OF_EVALUATION.search(name) for name in names):
            return
        if self._trains(node) and not _gives_one_batch(node, facts):
            message = "a last, shorter batch compiles the step once more: drop_last=True"
            yield self.hit(node, message)

    def _trains(self, call: cst.Call) -> bool:
        """Whether the loader shuffles, or samples as training does."""
        shuffle, sampler = keyword(call, "shuffle"), keyword(call, "sampler")
        if sampler is not None and code(sampler.value) != "None":
            text = code(sampler.value).lower()
            return OF_EVALUATION.search(text) is None
        return shuffle is not None and code(shuffle.value) not in ("False", "None")


def _is_false(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is False, also as a variable that is nothing else."""
    if isinstance(value, cst.Name) and value.value != "False":
        values = [assignment.value for assignment in facts.bindings.given(value)]
        return bool(values) and all(v is not None and code(v) == "False" for v in values)
    return code(value) == "False"


def _gives_one_batch(loader: cst.Call, facts: Facts) -> bool:
    """Whether all that is taken of the loader is its first batch, which is whole: `next(iter(loader))`."""
    uses: list[cst.CSTNode] = [loader]
    above = facts.context.parent(loader)
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
        if not isinstance(target, cst.Name) or len(facts.context.bindings(target)) != 1:
            return False
        uses = [name for name in facts.context.mentions(target) if name is not target]
    return bool(uses) and all(_is_first_batch(use, facts) for use in uses)


def _is_first_batch(use: cst.CSTNode, facts: Facts) -> bool:
    """Whether `use` stands in `next(iter(loader))`."""
    for function in ("iter", "next"):
        call = facts.context.parent(facts.context.parent(use))
        if not isinstance(call, cst.Call) or code(call.func) != function:
            return False
        use = call
    return True
