"""Runs of the script in a process and a mirror of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from migrate import process
from migrate.place import Place
from migrate.prove.failure import last_error
from migrate.train.errors import TrainError
from shims import activate
from shims._shared.ports import free_port

# Variables of torchrun, for one process. Port 0: a free one.
TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}

_RUN = "from migrate.train.watch.runner import main; main()"


def run_script(
    script: Path,
    args: Sequence[str],
    plugin: str,
    folder: Path,
    expected: str,
    timeout: float,
    source: str = "",
    failed: str = "check that it runs on a CPU alone; arguments of the script go after --",
) -> None:
    """Run a script on the CPU under a plugin, until the plugin has written its file.

    Args:
        script: the training script.
        args: its arguments.
        plugin: function that is called when the script has imported torch.
        folder: folder for what the plugin writes.
        expected: the file in it that the plugin writes at its end; one of an earlier run does not count.
        timeout: seconds until then.
        source: text to run in place of the script's own; empty: its own.
        failed: what to do if the script fails.

    Raises:
        TrainError: the script failed, or ran too long.
    """
    mirror = folder / f"mirror-{expected}"
    shutil.rmtree(mirror, ignore_errors=True)  # of an earlier run: it has what that one wrote
    mirror.mkdir(parents=True)
    (folder / expected).unlink(missing_ok=True)
    place = Place(mirror, script, Path.cwd())
    inside = place.inside(script)
    if source:
        text = folder / f"source-{expected}.py"
        text.write_text(source)
        place.put(script, text)
    environment = {
        **os.environ,
        **activate.environment("cpu", 1, [plugin]),
        # Workers of an earlier run may still hold the port that the script names.
        activate.PORT: str(free_port()),
        activate.ONE_MACHINE: "1",
        "MIGRATE_TRAIN_SCRIPT": str(inside),
        "MIGRATE_TRAIN_FOLDER": str(folder),
    }
    code, output = process.run(
        [sys.executable, "-c", _RUN, str(inside), *place.args(args)],
        seconds=timeout,
        environment=place.environment(environment) | {"MIGRATE_TRAIN_FOLDER": str(folder)},
        cwd=place.folder,
    )
    if (folder / expected).exists():
        return
    # A progress bar is printed again after a traceback.
    last = place.text_outside(last_error(output) or process.last_line(output)).strip()[:300]
    if code is None:
        raise TrainError(
            f"{script}: was not done with its first steps within {timeout:.0f} s",
            "raise the limit with --timeout, or pass arguments that make its steps smaller",
        )
    if code:
        line = _own_line(place.text_outside(output), script) or f"{script}"
        raise TrainError(
            f"{line}: ended with exit code {code} before it had trained ({last})", failed
        )
    raise TrainError(
        f"{script}: ended without a call of backward ({last})",
        "name the script that trains; arguments of the script go after --",
    )


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Restore the environment variables of this process at the end."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def needs_torchrun(error: str) -> bool:
    """Whether a script failed because a variable of torchrun is not set.

    Args:
        error: the text of the error, such as "KeyError: 'LOCAL_RANK'".
    """
    names = "|".join(TORCHRUN)
    return bool(
        re.search(rf"\bKeyError: '({names})'|\benvironment variable ({names}) expected", error)
    )


def _own_line(output: str, script: Path) -> str:
    """File and line of the last frame of a traceback that is in the script's folder; "" if there is none."""
    folder = f"{script.resolve().parent}{os.sep}"
    frames = re.findall(r'^ *File "(.+)", line (\d+)', output, re.MULTILINE)
    own = [(file, line) for file, line in frames if file.startswith(folder)]
    own = [(file, line) for file, line in own if "site-packages" not in file]
    return ":".join(own[-1]) if own else ""
