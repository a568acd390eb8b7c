"""Read what torch_xla writes of each graph that it executes.

With `XLA_SAVE_TENSORS_FILE` set, torch_xla 2.9 appends a text for each execution that starts from
pending tensors: the Python frames that led to it, innermost first, the graph, one node a line, and the
hash by which compiled graphs are kept. `XLA_IR_DEBUG=1` adds to each node where it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BEGIN = "[ScheduleSyncTensorsGraph]"
_END = "## END_GRAPH"
_FRAME = re.compile(r"^  (?P<function>.+?) \((?P<file>.+):(?P<line>\d+)\)$", re.MULTILINE)
_GRAPH = re.compile(r"^IR \{\n(?P<nodes>.*?)^\}$", re.MULTILINE | re.DOTALL)
_HASH = re.compile(r"^Graph Hash: (?P<hash>\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class DumpFrame:
    """A place in running Python code: function, file, line (from 1)."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Dumped:
    """An execution in the dump.

    Attributes:
        graph: torch_xla's hash of the graph.
        frames: what led to it, innermost first.
        nodes: the graph, one node a line, without leading blanks.
    """

    graph: str
    frames: tuple[DumpFrame, ...]
    nodes: tuple[str, ...]


def executions(text: str) -> Iterator[Dumped]:
    """Yield the executions of a dump; an entry that is not complete, the last one of a crash, is left out."""
    for entry in text.split(_BEGIN)[1:]:
        match = _HASH.search(entry)
        if _END not in entry or match is None:
            continue
        head = entry.partition("## BEGIN_GRAPH")[0]
        graph = _GRAPH.search(entry)
        nodes = graph["nodes"].splitlines() if graph else []
        yield Dumped(
            match["hash"],
            tuple(
                DumpFrame(f["function"], f["file"], int(f["line"])) for f in _FRAME.finditer(head)
            ),
            tuple(node.strip() for node in nodes),
        )
