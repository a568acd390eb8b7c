"""Batches that the training loop copies to the device itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import DESCRIBES, DESCRIBING_METHODS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.script import Script
from migrate.reading.steps.loops import batch_names
from migrate.reading.values.devices import moves
from migrate.syntax.tree import code, nodes_of

LOADER = "torch_xla.distributed.parallel_loader.MpDeviceLoader"
# Iterators of Python and tqdm around a loader.
AROUND = frozenset({"enumerate", "tqdm"})


class BatchCopies(Hazard):
    """The training loop copies each batch to the device itself.

    **Why.** `x.to(device)` of a batch is a copy in the thread that starts the steps, between two of them.
    Where the loop reads a value at every step, the copy begins only when the step has ended.
    `MpDeviceLoader` copies the next batches in a thread of its own while the step runs.

    **What to do.** Iterate over `MpDeviceLoader(loader, device)` of `torch_xla.distributed.parallel_loader`,
    and take out the moves of the batch and `with torch_xla.step():`, as the loader ends the graph before each
    batch. It moves the tensors in tuples, lists and dictionaries, and leaves the rest of a batch as it is.
    `set_epoch` stays a call on the sampler of the wrapped loader. Measure first: the loader helps where the
    copy takes a noticeable part of a step.

    Nothing is reported where the loop uses a part of a batch on the host, which the loader would move too.

    Source: torch_xla 2.9, `parallel_loader.py`.
    """

    code = "XLA210"
    name = "batch-copies"
    severity = Severity.INFO
    is_mentioned = True
    nodes = (cst.For,)
    examples = (
        example(
            """
            import torch_xla
            from torch.utils.data import DataLoader


            def train(model, data, optimizer, loss_fn):
                loader = DataLoader(data, batch_size=64, drop_last=True)
                for images, labels in loader:  # XLA210
                    with torch_xla.step():
                        images, labels = images.to("xla"), labels.to("xla")
                        loss = loss_fn(model(images), labels)
                        loss.backward()
                        optimizer.step()
                for step, batch in enumerate(loader):  # XLA210
                    batch = {name: part.to("xla") for name, part in batch.items()}
                    loss = loss_fn(model(batch["images"]), batch["labels"])
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            import torch_xla.distributed.parallel_loader as pl
            from torch.utils.data import DataLoader


            def train(model, data, optimizer, loss_fn, captions):
                loader = DataLoader(data, batch_size=64, drop_last=True)
                for images, labels in pl.MpDeviceLoader(loader, "xla"):
                    loss = loss_fn(model(images), labels)
                    loss.backward()
                    optimizer.step()
                for images, lengths in loader:
                    captions.extend(lengths.tolist())
                    loss = model(images.to("xla")).mean()
                    loss.backward()
                    optimizer.step()


            def evaluate(model, loader, outputs):
                with torch.no_grad():
                    for images in loader:
                        outputs.append(model(images.to("xla")).cpu())
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla.distributed.parallel_loader as pl
        from torch.utils.data import DataLoader


        def train(model, data, optimizer, loss_fn):
            loader = DataLoader(data, batch_size=64, drop_last=True)
            for images, labels in pl.MpDeviceLoader(loader, "xla"):
                loss = loss_fn(model(images), labels)
                loss.backward()
                optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a training loop over a loader that moves all parts of a batch."""
        assert isinstance(node, cst.For)
        script = facts.context
        if node not in facts.steps.loops or facts.values.kind(node.iter) is not Kind.LOADER:
            return
        if script.effects.on_cpu(node) is not None or _is_portable(script):
            return
        names = [name for name in batch_names(node, script) if _is_used(node, name)]
        if not names or not all(_moves_all(node, name, script) for name in names):
            return
        loader = code(_loader(node.iter))
        message = (
            "each step waits for the copy of its batch to the device. Optional, for speed: iterate over "
            f"{LOADER}({loader}, device), which copies the next batch meanwhile. It also ends the step, so "
            "the copies and the block `with torch_xla.step():` are then not needed"
        )
        yield self.hit(node.iter, message)


def _loader(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the loader in `enumerate(loader)` and `tqdm(loader)`."""
    while isinstance(value, cst.Call) and value.args:
        if code(value.func).rpartition(".")[2] not in AROUND:
            break
        value = value.args[0].value
    return value


def _is_portable(script: Script) -> bool:
    """Whether the script also runs on CUDA, by `shims` alone. The loader of the advice is torch_xla's."""
    return bool(script.references("shims")) and not script.references("torch_xla")


def _is_used(loop: cst.For, name: str) -> bool:
    return any(mention.value == name for mention in nodes_of(loop.body, cst.Name))


def _moves_all(loop: cst.For, name: str, script: Script) -> bool:
    """Whether the loop uses `name` only to move it, or after it was moved."""
    moved = False
    for statement in _statements(loop.body):
        mentions = [n for n in script.below(statement, cst.Name) if n.value == name]
        if not mentions:
            continue
        calls = [*moves(statement, script), *_movers(statement, script)]
        inside = {id(part) for call in calls for part in script.below(call, cst.Name)}
        comprehensions = {
            id(part)
            for kind in (cst.DictComp, cst.ListComp, cst.GeneratorExp)
            for comprehension in nodes_of(statement, kind)
            if next(moves(comprehension, script), None) is not None
            for part in script.below(comprehension, cst.Name)
        }
        rest = [n for n in mentions if id(n) not in inside | comprehensions]
        rebinds = any(_is_target(n, script) for n in rest)
        if any(not _is_target(n, script) and not _describes(n, script) for n in rest):
            return False
        moved = moved or len(rest) < len(mentions)
        if rebinds and moved:
            return True
    return moved


def _statements(suite: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    """Yield the statements of a block, those of `with` blocks in it one by one."""
    for statement in suite.body:
        if isinstance(statement, cst.With):
            yield from _statements(statement.body)
        else:
            yield statement


def _movers(statement: cst.CSTNode, script: Script) -> Iterable[cst.Call]:
    """Yield the calls of functions that move their arguments and do not train."""
    for call in script.below(statement, cst.Call):
        if script.effects.moves(call) and not script.effects.of(call):
            yield call


def _is_target(name: cst.Name, script: Script) -> bool:
    above = script.parent(name)
    while isinstance(above, cst.Element | cst.Tuple):
        above = script.parent(above)
    return isinstance(above, cst.AssignTarget)


def _describes(name: cst.Name, script: Script) -> bool:
    """Whether the use only asks for the shape, the size or the like, which the host knows."""
    above = script.parent(name)
    if isinstance(above, cst.Attribute):
        return above.attr.value in DESCRIBES | DESCRIBING_METHODS
    call = script.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and code(call.func) == "len"
