"""Start the ranks of a script that is for this environment as it is, such as one for torch_tpu.

    python -m shims._started N HOW SCRIPT ARGS

HOW is a launch style of `shims._started.script`; empty: the style that the script expects.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from shims._started import ranks, script, stand_in


def main(argv: list[str]) -> int:
    """Start the ranks and wait for them; return the exit code of the first that failed."""
    number, how, path, *args = argv
    running = Path(path)
    # A rewritten file starts its ranks as its original does, whose modules are beside the original.
    read = stand_in.stands_for(running) or running
    search = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    start = script.find_start(read, list(filter(None, search)))
    if how:
        style: Any = how
        start = script.Start(style, start.option or "--local_rank")
    # A launcher of this process does not apply to the script.
    launched = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in launched}
    return ranks.run(running, args, start, int(number), environment)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
