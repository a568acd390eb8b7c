"""Read torch_tpu's own record of its compilations.

With TORCH_TRACE in the environment, torch_tpu 0.2.0 keeps an event for each operator that it runs: its name,
whether its kernel was known, and for new kernels the graph, with shapes and the user's line:

    # Graph: 1 ops, 3 inputs, reason: debug_mode
    %0: f32[8, 4] = input
    %1: f32[6, 4] = input
    %2: f32[8, 6] = linear(%0, %1)    # /home/me/train.py:12 in <module>
    return %2

A kernel counts as new once for each process, also if it comes from the cache on disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from migrate.observe.eager.records import Compilation
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import is_the_users

_PREFIX = "torchtpu_eager/"
_INPUT = re.compile(r"^%\d+: (?P<shape>.*) = input$", re.M)
_LINE = re.compile(r"    # (?P<file>/.*):(?P<line>\d+) in (?P<function>.*)$", re.M)
_OP = re.compile(r"^%\d+.* = (?P<op>\w+)[.\w]*\(", re.M)
# Operators that torch_tpu adds to the kernel of the operator before or after them.
_VIEWS = frozenset({"as_strided", "as_strided_inverse", "empty"})
_MICROSECONDS = 1e-6


def compilation(
    event: Mapping[str, Any], step: int, backward: DumpFrame | None
) -> Compilation | None:
    """Return the compilation of an event; None if its kernel was known, or is this program's own.

    Args:
        event: an event of torch_tpu's buffer.
        step: number of optimizer steps before it.
        backward: the user's line of the backward pass that ran; None: none ran.
    """
    if event["cache_hit"]:
        return None
    graph = event["aten_graph"]
    frames = [
        DumpFrame(match["function"], match["file"], int(match["line"]))
        for match in _LINE.finditer(graph)
    ]
    if frames and not any(is_the_users(frame.file) for frame in frames):
        return None
    line = next((frame for frame in frames if is_the_users(frame.file)), backward)
    return Compilation(
        op=_operators(graph) or event["name"].removeprefix(_PREFIX).partition(".")[0],
        shapes=", ".join(match["shape"] for match in _INPUT.finditer(graph)),
        line=line,
        backward=not frames and backward is not None,
        step=step,
        seconds=event["dur_us"] * _MICROSECONDS,
        failed=bool(event["compile_failed"]),
    )


def _operators(graph: str) -> str:
    names = dict.fromkeys(match["op"] for match in _OP.finditer(graph))
    return ", ".join(name for name in names if name not in _VIEWS)
