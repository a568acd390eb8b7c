"""Recording of rows chosen by a mask as all rows: a recording cannot have a size that depends on
values.

`x[mask]`, `x[torch.where(mask)]` and `for expert in hit.nonzero()` give every row, also those that
the mask leaves out. Where rows are put back (`out[mask] += y`, `out.index_add_(0, rows, y)`), only
the chosen rows are written. The result is the original's if no row uses another row and nothing
depends on the number of rows. Runs on real values check that: rows left out are NaN there, and the
outputs must equal the original's.
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

# Relative L2 difference above which outputs differ: float32, and 16 bits.
_LIMIT, _NARROW_LIMIT = 1e-4, 5e-2
ROWS = "rows chosen by a mask are computed for all rows, and those that are not chosen are dropped"


def rows_chosen(graph: torch.fx.Graph) -> str:
    """The first line of the model whose number of rows depends on values; "" if there is none."""
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
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    wanted: bool,
    reported: dict[str, None],
) -> Iterator[None]:
    """If `wanted`, record all rows in place of those that a mask chooses.

    Args:
        module: the model.
        inputs: inputs of the recording.
        wanted: whether to do so.
        reported: receives the lines that choose rows.

    Raises:
        MixedRowsError: the model would compute something else.
    """
    if not wanted:
        yield
        return
    mode = EveryRow(verified=_verified(module, inputs))
    with mode, _lists_by(mode):
        yield
    reported |= mode.reported


@contextmanager
def _lists_by(mode: EveryRow) -> Iterator[None]:
    """Route a tensor's `tolist` to the mode while a model is recorded, where no mode sees it."""
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

    The inputs are used unchanged, then with equal rows, so that some masks choose nothing, and with
    emptied masks.

    Returns:
        The lines that ask whether there are rows, and change nothing if there are none.

    Raises:
        MixedRowsError: an output differs.
    """
    expected = _outputs(module, inputs, None)
    runs = [EveryRow(poisoned=True, number=number) for number in (1, 1009)]
    if not all(_agree(expected, _outputs(module, inputs, mode)) for mode in runs):
        raise MixedRowsError("rows chosen by a mask depend on each other, or on their number")
    alike = {name: _alike(tensor) for name, tensor in inputs.items()}
    for case_inputs, original, how in (
        (alike, None, EveryRow(poisoned=True)),
        (inputs, Emptied(), EveryRow(poisoned=True, emptied=True)),
    ):
        expected = _outputs(module, case_inputs, original)
        if expected is None:
            continue  # the original needs some rows too
        if not _agree(expected, _outputs(module, case_inputs, how)):
            raise MixedRowsError("where a mask chooses no row, something else is done")
        runs.append(how)
    return set().union(*(run.none for run in runs))


def _alike(x: torch.Tensor) -> torch.Tensor:
    """The tensor with equal rows; for integers, all elements equal."""
    if x.is_floating_point():
        return x[(0,) * (x.dim() - 1)].expand_as(x) if x.dim() > 1 else x
    return x.flatten()[:1].expand_as(x) if x.numel() else x


def _outputs(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], mode: Any
) -> list[torch.Tensor] | None:
    """Outputs under a mode; None if the model raises."""
    module = copied(module)
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), mode or nullcontext():
        torch.manual_seed(0)
        try:
            result = module(**copies)
        except Exception:  # whatever a forward raises
            return None
    leaves = pytree.tree_leaves(dict(result) if isinstance(result, Mapping) else result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _agree(expected: list[torch.Tensor] | None, outputs: list[torch.Tensor] | None) -> bool:
    if expected is None or outputs is None or len(expected) != len(outputs):
        return False
    return all(map(_is_alike, expected, outputs))


def _is_alike(expected: torch.Tensor, output: torch.Tensor) -> bool:
    if expected.shape != output.shape or expected.dtype != output.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, output)
    odd = ~torch.isfinite(expected)
    if not torch.equal(torch.nan_to_num(expected[odd]), torch.nan_to_num(output[odd])):
        return False
    reference, other = expected[~odd].double(), output[~odd].double()
    limit = _NARROW_LIMIT if expected.dtype in (torch.bfloat16, torch.float16) else _LIMIT
    return bool((reference - other).norm() <= limit * reference.norm())
