"""Copies of folders from and to the bucket: compilation cache, logs, checkpoints written to a disk."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SECONDS = 60.0


def pull(remote: str, local: Path) -> int:
    """Copy a folder of the bucket to the disk, and return the number of files."""
    files, root = _files_of(remote)
    filesystem = _filesystem(remote)
    for name in files:
        pull_file(f"{root}/{name}", local / name, filesystem)
    return len(files)


def pull_file(remote: str, local: Path, filesystem: Any = None) -> None:
    """Copy a file of the bucket to the disk; it gets its name when it is complete.

    Args:
        remote: the file.
        local: its path on the disk.
        filesystem: the file system of the bucket; None: the one that `remote` names.
    """
    local.parent.mkdir(parents=True, exist_ok=True)
    part = local.with_name(f"{local.name}.part")
    (filesystem or _filesystem(remote)).get_file(remote, str(part))
    part.rename(local)


def exists(remote: str) -> bool:
    """Whether a file is in the bucket."""
    return bool(_filesystem(remote).exists(remote))


def write_text(remote: str, text: str) -> None:
    """Write a small file of the bucket."""
    filesystem = _filesystem(remote)
    filesystem.makedirs(remote.rpartition("/")[0], exist_ok=True)
    with filesystem.open(remote, "w") as file:
        file.write(text)


def remove(remote: str) -> None:
    """Remove a file of the bucket, if it is there."""
    filesystem = _filesystem(remote)
    if filesystem.exists(remote):
        filesystem.rm_file(remote)


class Mirror:
    """Folder on the disk whose finished files are copied to the bucket, once a minute and at the end.

    Args:
        local: the folder.
        remote: its place in the bucket.
    """

    def __init__(self, local: Path, remote: str) -> None:
        self.local = local
        self._remote = remote
        self._seen: dict[str, tuple[int, int]] = {}
        self._copied: dict[str, tuple[int, int]] = {}

    def copied_already(self) -> None:
        """Take what is on the disk now for what is in the bucket."""
        self._seen = self._copied = self._states()

    def push(self, *, final: bool = False) -> None:
        """Copy files that are new or changed.

        Args:
            final: whether nobody writes any more. Before that, a file is copied when it did not change
                since the last look: a file that is being written is left for the next one.
        """
        states = self._states()
        for name, state in states.items():
            if self._copied.get(name) != state and (final or self._seen.get(name) == state):
                filesystem, target = _filesystem(self._remote), f"{self._remote}/{name}"
                filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
                if "://" in self._remote:
                    filesystem.put_file(str(self.local / name), target)
                else:
                    shutil.copy2(self.local / name, f"{target}.part")
                    Path(f"{target}.part").rename(target)
                self._copied[name] = state
        self._seen = states

    def _states(self) -> dict[str, tuple[int, int]]:
        states = {}
        for path in self.local.rglob("*"):
            if path.is_file() and path.suffix != ".part":
                status = path.stat()
                name = path.relative_to(self.local).as_posix()
                states[name] = (status.st_size, status.st_mtime_ns)
        return states


class Pushing:
    """Thread that pushes mirrors once a minute while the program runs.

    Args:
        mirrors: the folders.
        report: called with what is not copied, once for each new text.
        seconds: time between two looks.

    Attributes:
        problem: what the last look did not copy; empty: nothing.
    """

    def __init__(
        self, mirrors: list[Mirror], report: Callable[[str], None], seconds: float = _SECONDS
    ) -> None:
        self._mirrors = mirrors
        self._report = report
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.problem = ""

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._push(final=True)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._push()

    def _push(self, *, final: bool = False) -> None:
        problems = []
        for mirror in self._mirrors:
            try:
                mirror.push(final=final)
            except Exception as error:  # a bucket that does not answer must not end the training
                problems.append(f"{mirror.local.name} was not copied to the bucket: {error}")
        problem = "; ".join(problems)
        if problem and problem != self.problem:
            self._report(problem)
        self.problem = problem


def _filesystem(url: str) -> Any:
    import fsspec

    return fsspec.filesystem(url.partition("://")[0] if "://" in url else "file")


def _files_of(remote: str) -> tuple[list[str], str]:
    """Return the names of the files below a folder, and the folder as its file system spells it."""
    filesystem = _filesystem(remote)
    root = str(filesystem._strip_protocol(remote)).rstrip("/")
    if not filesystem.exists(remote):
        return [], root
    names = (str(name).removeprefix(root).lstrip("/") for name in filesystem.find(remote))
    return [name for name in names if name and not name.endswith(".part")], root
