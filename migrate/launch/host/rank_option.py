"""`python -m migrate.launch.host.rank_option OPTION SCRIPT ARGS`: run a script as the rank that it is.

torchrun gives the number in a variable. Scripts for `torch.distributed.launch` take it as an option.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run the script as if it were started with `OPTION=LOCAL_RANK` before its arguments."""
    option, script, *rest = arguments
    sys.argv = [script, f"{option}={os.environ['LOCAL_RANK']}", *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
