"""Source of `data.py`: the DataLoader of the script over the modules that the program carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from migrate.train.data.padding import PaddingRule
from migrate.train.data.recorded import RecordedLoader, RecordedSampler
from migrate.train.errors import TrainError

_PACKAGE = "migrate.train.data.program"
_MODULES = ("order", "buckets", "batches")
Loading = Literal["grain", "torch"]


@dataclass(frozen=True)
class WrittenData:
    """Files that load data. `data.py` defines `batches(dataset, …)`.

    Attributes:
        files: name → source.
        notes: lines for the README.
        by_script: whether the script's own DataLoader is kept, and passed instead of the dataset.
    """

    files: Mapping[str, str]
    notes: tuple[str, ...]
    by_script: bool


def write_data(
    loader: RecordedLoader, loading: Loading = "grain", padding: PaddingRule | None = None
) -> WrittenData:
    """Write the files that load the script's data.

    Args:
        loader: the DataLoader of the run.
        loading: "grain", or "torch" to keep torch's workers.
        padding: padding that was proven to be neutral; None to leave lengths as they are.

    Raises:
        TrainError: grain cannot give the script's order; the message names the line and what to do.
    """
    files = {f"{name}.py": _carried(name) for name in _MODULES}
    reason = _why_unknown(loader)
    if reason and loading == "grain":
        raise TrainError(f"{loader.at}: {reason}", "keep torch's loader: --data torch")
    if reason:
        files["data.py"] = _by_script(loader)
        return WrittenData(files, (f"the script's own DataLoader is kept: {reason}",), True)
    order, notes = _order(loader)
    files["data.py"] = _by_order(loader, order, loading, padding)
    if padding is None:
        notes.append("batches keep their lengths: each new length compiles the step again")
    return WrittenData(files, tuple(notes), False)


def _why_unknown(loader: RecordedLoader) -> str:
    """Return why the order of examples is not known without torch; "" if it is."""
    sampler = loader.sampler
    if loader.iterable:
        return "an IterableDataset gives its examples in an order of its own"
    if loader.batch_sampler:
        return f"the batch sampler {loader.batch_sampler} has an order of its own"
    if sampler.order in ("other", "subset"):
        return f"the sampler {sampler.name} has an order of its own"
    if sampler.size is None:
        return "the dataset has no length"
    if loader.batch_size is None:
        return "the loader makes no batches"
    if loader.drawn:
        return "its generator has been drawn from before the first epoch"
    if sampler.order == "distributed" and sampler.shuffle and _epochs_of(sampler) is None:
        return "the recorded epochs do not show what set_epoch is called with"
    if sampler.order == "random" and loader.shared_generator is None and not loader.seeds:
        return "the seeds of its shuffle were not recorded"
    return ""


def _epochs_of(sampler: RecordedSampler) -> Literal["counted", "fixed"] | None:
    """Return whether `set_epoch` counts epochs or is never called; None if the record does not show it."""
    epochs = sampler.epochs
    if len(epochs) < 2:
        return None
    if epochs == tuple(range(len(epochs))):
        return "counted"
    return "fixed" if len(set(epochs)) == 1 else None


def _order(loader: RecordedLoader) -> tuple[str, list[str]]:
    """Return the expression of the order, and notes."""
    sampler, size = loader.sampler, loader.sampler.size
    options = ""
    if sampler.samples is not None and sampler.samples != size:
        options += f", samples={sampler.samples}"
    if sampler.replacement:
        options += ", replacement=True"
    if sampler.order == "sequential":
        return f"Sequential({size})", []
    if sampler.order == "distributed":
        options = "" if sampler.shuffle else ", shuffle=False"
        options += f", seed={sampler.seed}" if sampler.seed else ""
        options += ", drop_last=True" if sampler.drop_last else ""
        notes = []
        if sampler.shuffle and _epochs_of(sampler) == "fixed":
            options += f", fixed_epoch={sampler.epochs[0]}"
            notes = ["the script never calls set_epoch: each epoch has the same order"]
        return f"Distributed({size}, {sampler.replicas}{options})", notes
    if loader.shared_generator is not None:
        draws = "" if loader.loader_has_generator else ", loader_draws=False"
        return f"SharedGenerator({size}, {loader.shared_generator}{draws}{options})", []
    notes = [
        f"epochs after the first {len(loader.seeds)} are shuffled by other seeds than the script's, which "
        "depend on all that it draws before them"
    ]
    return f"Shuffled({size}, {loader.seeds!r}{options})", notes


def _by_order(
    loader: RecordedLoader, order: str, loading: Loading, padding: PaddingRule | None
) -> str:
    kind = order.partition("(")[0]
    replicas = loader.sampler.replicas
    drop = ", drop_last=True" if loader.drop_last else ""
    imports = ["from batches import Batches"]
    bucketed = ""
    constants = [f"ORDER = {order}", f"BATCH_SIZE = {loader.batch_size}"]
    if padding is not None:
        imports.append("from buckets import Buckets")
        side = ", left=True" if padding.left else ""
        constants.append(f"BUCKETS = Buckets({dict(padding.values)!r}{side})")
        bucketed = ", padding=BUCKETS"
    imports.append(f"from order import {kind}")
    collate = "" if loader.collate else "=None"
    doc = f"\n\n    `collate_fn` is {loader.collate}.\n    " if loader.collate else ""
    first = f"tuple(range({replicas}))" if replicas > 1 else "(0,)"
    return (
        f'"""Examples of {loader.at} in the same order, batch by batch."""\n\n'
        + "\n".join(imports)
        + "\n\n"
        + "\n".join(constants)
        + f"\nREPLICAS = {first}\n\n\n"
        f"def batches(dataset, collate_fn{collate}, *, replicas=REPLICAS, "
        f"workers={loader.workers}):\n"
        '    """Batches of the replicas that this process feeds; `position` and `restore` resume '
        f'them.{doc}"""\n'
        "    return Batches(\n"
        "        dataset,\n"
        "        ORDER,\n"
        "        BATCH_SIZE,\n"
        "        collate_fn=collate_fn,\n"
        "        replicas=replicas,\n"
        "        workers=workers,\n"
        f'        loader="{loading}"{drop}{bucketed},\n'
        "    )\n"
    )


def _by_script(loader: RecordedLoader) -> str:
    return (
        f'"""The DataLoader of {loader.at}, with NumPy arrays."""\n\n'
        "from batches import ScriptBatches\n\n\n"
        "def batches(loader, set_epoch=lambda epoch: None):\n"
        '    """Batches of the script\'s loader; `set_epoch` is called before each epoch."""\n'
        "    return ScriptBatches(loader, set_epoch)\n"
    )


def _carried(name: str) -> str:
    """Return a module of the program, importing its neighbors as the program does."""
    source = resources.files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return source.replace(f"from {_PACKAGE}.", "from ")
