"""Separate folder for each run of a script, so that no run sees the files of another run.

A script that finds its own snapshot would resume from it: the second run would then do other steps than the
first. So each run gets a mirror of the working directory and of the script's folder: real folders with copies
of the files, removed at the end. The user's folders stay unchanged.

Large content is a link to the original: files above `LARGE` bytes, content after `COPIED` bytes or `ENTRIES`
files, folders of more than `CROWDED` files, version control and environments. The folders above are real
folders full of links, so that `../data` is found. The next run sees changes that a run makes through a link;
they are reported.

Not separated: files that a script writes to absolute paths of its own. Paths in its arguments and in the
environment are replaced by those of the mirror.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shims._started import stand_in

LARGE = 64 << 20
COPIED = 512 << 20
ENTRIES = 20_000
CROWDED = 2_000

# Linked unchanged: large, and no script writes there.
_WHOLE = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "site-packages"})
_LEFT_OUT = frozenset({"__pycache__"})
# Copied before all larger files.
_SMALL = 1 << 20


class Place:
    """Mirror of the folders in which a script runs.

    Args:
        root: an empty folder, in which the mirror lies.
        script: the script that will run; a substitute for another script counts as being in its folder.
        here: its working directory.
    """

    def __init__(self, root: Path, script: Path, here: Path) -> None:
        self._root = root.resolve()
        self._here = here.resolve()
        self._script_folder = (stand_in.stands_for(script) or script).resolve().parent
        self._linked: dict[Path, tuple[int, int]] = {}
        self._copied = self._entries = 0
        self._owned = tuple(_owned(self._script_folder, self._here))
        # Folders of which the mirror has the content, or a real folder of links to it.
        self._mirrored = (*self._owned, self._here, self._script_folder)
        for folder in self._mirrored:
            self._reach(folder)
        for folder in self._owned:
            self._mirror(folder)
        # Modules are stood for where they are imported.
        for path, source in stand_in.files(script).items():
            if (path.suffix != ".py" or not path.exists()) and self.owns(path):
                self.put(path, source)

    @property
    def folder(self) -> Path:
        """The working directory."""
        return self.inside(self._here)

    def inside(self, path: Path) -> Path:
        """Return the location of a file in the mirror; a path that is not mirrored stays unchanged."""
        absolute = Path(os.path.abspath(self._here / path))
        resolved = absolute.parent.resolve() / absolute.name
        for known in (absolute, resolved):
            if any(known.is_relative_to(folder) for folder in self._mirrored):
                return self._root / known.relative_to("/")
        return absolute

    def owns(self, path: Path) -> bool:
        """Whether a file is in the mirror, not behind a link of it."""
        inside = self.inside(path)
        return inside.is_relative_to(self._root) and inside.parent.resolve().is_relative_to(
            self._root
        )

    def put(self, path: Path, source: Path | None) -> None:
        """Put a copy of `source` at `path`, which the mirror owns; with None, put nothing there.

        Raises:
            ValueError: the mirror does not own it: the file is the user's.
        """
        if not self.owns(path):
            raise ValueError(f"{path} is not in the mirror")
        target = self.inside(path)
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.is_dir():
            shutil.rmtree(target)
        if source is None:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)

    def text_inside(self, text: str) -> str:
        """Return an argument, or the value of a variable, with the paths of the mirror in it."""
        for folder in self._owned:
            known = str(folder)
            parts = text.split(known)
            text = parts[0]
            for part in parts[1:]:
                # The name of another folder may begin with this one's, or end with it.
                whole = text[-1:] in ("", "=", ":", ",") and part[:1] in ("", "/", ":", ",")
                text += (str(self._root) if whole else "") + known + part
        return text

    def text_outside(self, text: str) -> str:
        """Return the output of a run, with the user's paths for those of the mirror."""
        return text.replace(str(self._root), "")

    def args(self, args: Sequence[str]) -> list[str]:
        """Arguments of the script."""
        return [self.text_inside(arg) for arg in args]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Environment of the script, whose PYTHONPATH may name its folder."""
        inside = {name: self.text_inside(value) for name, value in variables.items()}
        known = {
            "HOME": str(Path.home()),
            "PWD": str(self.folder),
            stand_in.MIRROR: str(self._root),
        }
        return {**inside, **known}

    def changed(self) -> list[Path]:
        """The user's files and folders behind links that the run has changed."""
        return [path for path, before in self._linked.items() if _stamp(path) != before]

    def _reach(self, path: Path) -> None:
        """Make a folder and its parents real folders, with links to their other contents."""
        for folder in (*reversed(path.parents), path):
            mirrored = self._root / folder.relative_to("/")
            if mirrored.is_symlink():
                mirrored.unlink()
            # The root of the mirror is there before it is filled.
            if mirrored.exists() and (folder != Path("/") or any(mirrored.iterdir())):
                continue
            mirrored.mkdir(exist_ok=True)
            if folder not in self._owned:
                for entry in _entries(folder):
                    (mirrored / entry.name).symlink_to(entry.path)

    def _mirror(self, root: Path) -> None:
        later: list[tuple[int, Path]] = []
        waiting = deque([root])
        while waiting:
            folder = waiting.popleft()
            entries = list(_entries(folder))
            self._entries += len(entries)
            crowded = len(entries) > CROWDED or self._entries > ENTRIES
            if folder != root and crowded and not self._script_folder.is_relative_to(folder):
                self._entries -= len(entries)
                self._link(folder)
                continue
            self._at(folder).mkdir(exist_ok=True)
            for entry in entries:
                path = Path(entry.path)
                if entry.name in _LEFT_OUT or os.path.lexists(self._at(path)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in _WHOLE or (path / "pyvenv.cfg").is_file():
                        # Not watched: other processes work there meanwhile.
                        self._at(path).symlink_to(path)
                    elif path != self._root and path not in self._root.parents:
                        waiting.append(path)
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        later.append((entry.stat().st_size, path))
                elif entry.is_symlink():
                    self._link(path)
        for size, path in sorted(later, key=lambda entry: (entry[0] > _SMALL, entry[0], entry[1])):
            if size > LARGE or self._copied + size > COPIED:
                self._link(path)
                continue
            self._copied += size
            # Other processes may remove their files meanwhile.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                shutil.copy2(path, self._at(path))

    def _at(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def _link(self, path: Path) -> None:
        self._at(path).symlink_to(path.resolve())
        self._linked[path] = _stamp(path)


def _owned(script_folder: Path, here: Path) -> Iterator[Path]:
    """Folders to mirror: the working directory, and the script's folder if it is elsewhere."""
    home, shared = Path.home().resolve(), Path(tempfile.gettempdir()).resolve()
    # All folders of a user, or of all users: only the folder itself is real there, its content is linked.
    vast = {home, shared, *home.parents, *shared.parents}
    if here not in vast:
        yield here
        if script_folder.is_relative_to(here):
            return
    if script_folder not in vast:
        yield script_folder


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size if stat.S_ISREG(status.st_mode) else 0)
