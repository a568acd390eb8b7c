"""`python -m shims [--ranks N] [--backend cpu|xla|cuda] SCRIPT ARGS`: run CUDA code as it is."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, get_args

from shims import activate, choice
from shims._started import ranks as _ranks
from shims._started import script
from shims.errors import ShimError

_EPILOG = """\
example:
  python -m shims --ranks 2 train.py --epochs 1

The script is started as it expects: with torchrun's environment, with --local_rank, or alone where
it calls mp.spawn. MIGRATE_BACKEND forces a backend, as --backend does. MIGRATE_SHIMS_LOG=1 (or a
path) lists the CUDA calls that it made, with their lines.
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, as for all other bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"shims: {message}; `{self.prog} --help` says more\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code: the script's own, or 2 for bad input."""
    parser = _Parser(
        prog="python -m shims",
        description="Run an unedited CUDA script on the backend that is here.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="processes, a device each (default: the devices)"
    )
    parser.add_argument(
        "--backend", choices=tuple(choice.ACTIVATED), help="default: a TPU, then CUDA, then the CPU"
    )
    parser.add_argument(
        "--start",
        choices=get_args(script.Style),
        help="how, for a script that can start its ranks in several ways (default: as torchrun does)",
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    options = parser.parse_args(argv)
    try:
        if not options.script.is_file():
            raise ShimError(f"{options.script} is not a file", "give the path of a Python script")
        backend = choice.choose_for_cuda_code(options.backend)
        ranks = choice.devices(backend) if options.ranks is None else options.ranks
        choice.require_devices(backend, ranks)
        variables = activate.environment(choice.ACTIVATED[backend], ranks, activate.plugins())
    except ShimError as error:
        sys.stderr.write(f"shims: {error}\n")
        return 2
    # The script will not have the working directory on its path, as this process has.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [*given, *(entry for entry in sys.path if entry != str(Path.cwd()))]
    start = script.find_start(options.script, list(filter(None, path)))
    if options.start is not None:
        start = script.Start(options.start, start.option or "--local_rank")
    # As torchrun does: N ranks with a thread for each core each would hinder one another.
    env = {"OMP_NUM_THREADS": "1", **os.environ, **variables, activate.ONE_MACHINE: "1"}
    # The launcher of this process, if it has one, is not the script's.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        env.pop(name, None)
    return _ranks.run(options.script, options.args, start, ranks, env)


if __name__ == "__main__":
    raise SystemExit(main())
