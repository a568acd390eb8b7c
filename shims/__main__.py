"""`python -m shims [--ranks N] [--backend cpu|xla|tpu|cuda] SCRIPT ARGS`: run unedited CUDA code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, get_args

from shims import activate, choice, simulate_tpu
from shims._started import ranks as _ranks
from shims._started import script
from shims.errors import ShimError

_EPILOG = """\
example:
  python -m shims --ranks 2 train.py --epochs 1

The script is started the way it expects: with torchrun's environment, with --local_rank, or alone if
it calls mp.spawn. MIGRATE_BACKEND forces a backend, like --backend. MIGRATE_SHIMS_LOG=1 (or a
path) lists the script's CUDA calls with their lines.
"""


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports bad arguments in one line, like all other bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"shims: {message}; `{self.prog} --help` says more\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command line. Return the script's exit code, or 2 for bad input."""
    parser = _Parser(
        prog="python -m shims",
        description="Run an unedited CUDA script on the backend of this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="Number of processes, each with one device (default: all devices).",
    )
    parser.add_argument(
        "--backend",
        choices=tuple(choice.ACTIVATED),
        help="Backend to use (default: TPU, then CUDA, then CPU).",
    )
    parser.add_argument(
        "--start",
        choices=get_args(script.Style),
        help="Launch style, for a script that supports several (default: as torchrun does).",
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
        if backend == "tpu":
            simulate_tpu.require_ranks(ranks)
        variables = activate.environment(choice.ACTIVATED[backend], ranks, activate.plugins())
    except ShimError as error:
        sys.stderr.write(f"shims: {error}\n")
        return 2
    if backend == "tpu":
        sys.stderr.write(f"shims: {simulate_tpu.describe(ranks)}\n")
    # Python's path here includes the working directory; the script's path will not.
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [*python_path, *(entry for entry in sys.path if entry != str(Path.cwd()))]
    start = script.find_start(options.script, list(filter(None, path)))
    if options.start is not None:
        start = script.Start(options.start, start.option or "--local_rank")
    # Like torchrun: N ranks with one thread per core each would slow each other down.
    env = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    # A launcher of this process, if any, does not apply to the script.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        env.pop(name, None)
    return _ranks.run(options.script, options.args, start, ranks, env)


if __name__ == "__main__":
    raise SystemExit(main())
