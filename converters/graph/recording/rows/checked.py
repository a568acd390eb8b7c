"""Rows chosen by a mask, as all rows: a recording has no room for as many as the values say.

`x[mask]`, `x[torch.where(mask)]` and `for expert in hit.nonzero()` give every row, also those that the
mask leaves out. Where rows are put back (`out[mask] += y`, `out.index_add_(0, rows, y)`), only the
chosen ones are. The result is the original's if no row looks at another one and nothing asks how many
there are. Runs on real values show that: the rows that are left out are NaN there, and the outputs must
be the original's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from converters.copied import copied
from converters.graph.recording.nodes import frames_of, needed
from converters.graph.recording.rows.mode import Emptied, EveryRow
from converters.graph.recording.rows.segments import MixedRowsError

# Relative L2 of the outputs, above which they are others: float32, and 16 bits.
_LIMIT, _NARROW_LIMIT = 1e-4, 5e-2
ROWS = "rows chosen by a mask are computed for all rows, and those that are not chosen are dropped"


def rows_chosen(graph: torch.fx.Graph) -> str:
    """The first line of the model that gives as many rows as values say; "" where none does."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    wanted = needed(graph)
    for node in graph.nodes:
        value = node.meta.get("val") if node in wanted else None
        if isinstance(value, torch.Tensor) and free_unbacked_symbols(value.shape):
            frames = frames_of(node)
            return f"{frames[-1] if frames else node}: a size rests on values"
    return ""


@contextmanager
def every_row(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], wanted: bool, told: dict[str, None]
) -> Iterator[None]:
    """Record all rows for those that a mask chooses, where that is wanted.

    Args:
        module: the model.
        inputs: what it is recorded with.
        wanted: whether to do so.
        told: gets the lines that choose rows.

    Raises:
        MixedRowsError: the model would compute something else.
    """
    if not wanted:
        yield
        return
    mode = EveryRow(verified=_verified(module, inputs))
    with mode, _lists_by(mode):
        yield
    told |= mode.told


@contextmanager
def _lists_by(mode: EveryRow) -> Iterator[None]:
    """The mode is asked for a tensor's `tolist` while a model is recorded, where no mode sees it."""
    from torch._subclasses.fake_tensor import FakeTensor

    kind: Any = FakeTensor
    before = kind.tolist

    def tolist(self: Any) -> Any:
        counts = mode.counts(self)
        return before(self) if counts is None else counts

    kind.tolist = tolist
    try:
        yield
    finally:
        kind.tolist = before


def _verified(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> set[str]:
    """Compare runs with all rows to runs of the original.

    As it is, with inputs whose rows are all alike, so that some masks choose nothing, and with masks that are
    emptied.

    Returns:
        The lines that ask whether there are rows, and do what changes nothing if there are none.

    Raises:
        MixedRowsError: an output is another one.
    """
    expected = _outputs(module, inputs, None)
    runs = [EveryRow(poisoned=True, number=number) for number in (1, 1009)]
    if not all(_agree(expected, _outputs(module, inputs, mode)) for mode in runs):
        raise MixedRowsError("rows chosen by a mask depend on each other, or on their number")
    alike = {name: _alike(one) for name, one in inputs.items()}
    for given, original, how in (
        (alike, None, EveryRow(poisoned=True)),
        (inputs, Emptied(), EveryRow(poisoned=True, emptied=True)),
    ):
        expected = _outputs(module, given, original)
        if expected is None:
            continue  # the original, too, needs some
        if not _agree(expected, _outputs(module, given, how)):
            raise MixedRowsError("where a mask chooses no row, something else is done")
        runs.append(how)
    return set().union(*(one.none for one in runs))


def _alike(x: torch.Tensor) -> torch.Tensor:
    """The same row everywhere; the same number, of whole ones."""
    if x.is_floating_point():
        return x[(0,) * (x.dim() - 1)].expand_as(x) if x.dim() > 1 else x
    return x.flatten()[:1].expand_as(x) if x.numel() else x


def _outputs(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], mode: Any
) -> list[torch.Tensor] | None:
    """Outputs under a mode; None where the model raises."""
    module = copied(module)
    given = {name: one.clone() for name, one in inputs.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), mode or nullcontext():
        torch.manual_seed(0)
        try:
            result = module(**given)
        except Exception:  # whatever a forward raises
            return None
    leaves = pytree.tree_leaves(dict(result) if isinstance(result, Mapping) else result)
    return [one for one in leaves if isinstance(one, torch.Tensor)]


def _agree(expected: list[torch.Tensor] | None, found: list[torch.Tensor] | None) -> bool:
    if expected is None or found is None or len(expected) != len(found):
        return False
    return all(map(_is_alike, expected, found))


def _is_alike(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, found)
    odd = ~torch.isfinite(expected)
    if not torch.equal(torch.nan_to_num(expected[odd]), torch.nan_to_num(found[odd])):
        return False
    one, other = expected[~odd].double(), found[~odd].double()
    limit = _NARROW_LIMIT if expected.dtype in (torch.bfloat16, torch.float16) else _LIMIT
    return bool((one - other).norm() <= limit * one.norm())
