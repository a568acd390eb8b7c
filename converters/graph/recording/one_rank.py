"""Collectives of a process group of one rank: what that rank adds up, gathers or sends is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.distributed.distributed_c10d import _resolve_process_group

from converters.graph.recording.nodes import frames_of, name_of
from converters.original_lines import OURS

ONE_RANK = (
    "recorded in a process group of one rank, where collectives change nothing; a port computes with the "
    "whole batch, so compare it with what the original computes on several ranks"
)
# Files between the original's line and the collective: torch's, and those of our packages that patch it.
_OTHERS = (
    f"{torch.__path__[0]}/",
    *(f"{Path(OURS).parent / package}/" for package in ("shims", "migrate")),
)
_LIBRARIES = "_c10d_functional", "_c10d_functional_autograd"
_WAITS = {f"{library}.wait_tensor.default" for library in _LIBRARIES}
COLLECTIVES = {
    f"{library}.{name}.default"
    for library in _LIBRARIES
    for name in (
        "all_reduce",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "broadcast",
        "all_to_all_single",
    )
}


def keeps_its_input(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an operator is a collective of one rank, or waits for one: its result is its input."""
    return name in _WAITS or (name in COLLECTIVES and _has_one_rank(arguments[-1]))


def collective_notes(graph: fx.Graph) -> list[str]:
    """Return a note on the collectives of a graph, with their lines; nothing if it has none."""
    lines = dict[str, None]()
    for node in graph.nodes:
        name = name_of(node.target) if node.op == "call_function" else ""
        if name in COLLECTIVES:
            frames = [f for f in frames_of(node) if not f.file.startswith(_OTHERS)]
            where = f" ({Path(frames[-1].file).name}:{frames[-1].line})" if frames else ""
            lines[f"{name.split('.')[1]}{where}"] = None
    return [f"{ONE_RANK}: {', '.join(lines)}"] if lines else []


def _has_one_rank(group: str) -> bool:
    try:
        return _resolve_process_group(group).size() == 1
    except (RuntimeError, ValueError):  # this process has no such group
        return False
