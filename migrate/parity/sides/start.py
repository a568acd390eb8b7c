"""Start the processes of the sides, and create the folder for passed files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.sides.process import SideProcess, Turns
from migrate.parity.sides.side import ComparedSide
from migrate.parity.sides.target import Target
from migrate.quick_xla import AS_WRITTEN


def started(
    targets: dict[str, tuple[Target, SideOptions]],
    options: ParityOptions,
    work: Path,
    stack: contextlib.ExitStack,
) -> list[ComparedSide]:
    """Start the processes of the sides in parallel; the stack ends them.

    Raises:
        ParityError: an interpreter does not work, or a model cannot be loaded.
    """
    for label, (_, how) in targets.items():
        if shutil.which(how.python) is None:
            raise ParityError(
                f"side {label}: {how.python} is not a program", "name a Python interpreter"
            )
    turns = Turns()
    sides = [
        SideProcess(
            label,
            target,
            work,
            turns,
            python=how.python,
            timeout=options.timeout,
            seed=options.seed,
            environment=_environment(how),
        )
        for label, (target, how) in targets.items()
    ]
    for side in sides:
        stack.callback(side.rest)
    if turns.shared:
        for side in sides:
            side.start()
    else:
        with ThreadPoolExecutor(len(sides)) as pool:
            for loading in [pool.submit(side.start) for side in sides]:
                loading.result()
    return list(sides)


def _environment(how: SideOptions) -> dict[str, str]:
    """XLA flags: torch_xla reads excess precision from them only, and JAX the options for single
    operations.
    """
    flags = []
    if not how.settings.excess_precision:
        flags.append(AS_WRITTEN)
    if how.hasty:
        flags.append("--xla_backend_optimization_level=0")
    return (
        {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()} if flags else {}
    )


@contextlib.contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """Folder for everything that is passed: temporary, or the folder to keep.

    Raises:
        ParityError: the folder to keep exists already.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="migrate-parity-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ParityError(f"{keep}: already exists", "name a new folder with --keep")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep
