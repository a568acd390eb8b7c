"""Write a rewritten script atomically, by default beside the original, and never over another file."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from converters.atomic import atomic_write
from migrate.catalogue.target import XLA, Target
from migrate.errors import MigrateError
from migrate.progress import Progress, no_progress
from migrate.rewrite.folder import files_of, rewrite_folder
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.results import FolderRewrite, Rewrite


class NotWritableError(MigrateError):
    """The rewritten script cannot be written there.

    Cause: the file or its folder is read-only, or the folder does not exist.

    Remedy: change its permissions, or name another file with `-o`.
    """


class WouldOverwriteError(MigrateError):
    """A file with other content is already there.

    Cause: an earlier run wrote it and it was edited since, or it is another script of yours.

    Remedy: name another file with `-o`, or overwrite it with `--force`.
    """


def rewrite_into(
    folder: Path,
    to: Path | None,
    *,
    options: RewriteOptions = DEFAULT,
    force: bool = False,
    progress: Progress = no_progress,
) -> FolderRewrite:
    """Rewrite `folder`, and write it to the folder `to`, if given; over itself where that is `folder`.

    Raises:
        UnreadableScriptError: the folder does not exist.
        NotWritableError, WouldOverwriteError: see `write_folder` and `write_in_place`. Those of another
            folder are raised before any work.
    """
    if to is not None and to != folder:
        check_folder_target(folder, to, force=force)
    done = rewrite_folder(folder, options=options, progress=progress)
    if to == folder:
        write_in_place(done)
    elif to is not None:
        progress(f"writing {to}")
        write_folder(done, to, force=force)
    return done


def write_folder(rewrite: FolderRewrite, to: Path, *, force: bool = False) -> None:
    """Write the rewritten folder to the folder `to`: changed files, and copies of all other files.

    The folder is made beside `to` and renamed when it is complete, so `to` is never incomplete. Version
    control, caches and virtual environments are left out.

    Args:
        rewrite: the rewritten files.
        to: the new folder. With `force` an existing one is replaced.
        force: whether a folder that is not empty may be replaced.

    Raises:
        NotWritableError: `to` is inside the folder or contains it, or its parent is missing.
        WouldOverwriteError: `to` exists and is not empty, and `force` is false.
    """
    check_folder_target(rewrite.folder, to, force=force)
    to = Path(os.path.abspath(to))
    partial = to.with_name(f".{to.name}.partial-{os.getpid()}")
    replaced = to.with_name(f".{to.name}.replaced-{os.getpid()}")
    contents = {file.name: file.after for file in rewrite.changed}
    try:
        _copy(rewrite.folder, partial, contents)
        if to.exists():
            to.rename(replaced)
        partial.rename(to)
    except OSError as error:
        if replaced.exists() and not to.exists():
            replaced.rename(to)
        reason = (error.strerror or str(error)).lower()
        raise NotWritableError(f"{error.filename or to}: {reason}", "name another folder") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def write_in_place(rewrite: FolderRewrite) -> None:
    """Write the changed files of the rewritten folder over their originals, each with its permissions.

    Raises:
        NotWritableError: a file is read-only, or has changed since it was read. Raised before the first is
            written.
    """
    changed = [(rewrite.folder / file.name, file) for file in rewrite.changed]
    for path, file in changed:
        if not path.is_file() or path.read_bytes() != file.before:
            raise NotWritableError(f"{path}: has changed meanwhile", "run the command again")
        if not path.stat().st_mode & stat.S_IWUSR:
            raise NotWritableError(
                f"{path}: is read-only", "change its permissions, or name a folder with -o"
            )
    for path, file in changed:
        mode = stat.S_IMODE(path.stat().st_mode)
        with atomic_write(path, overwrite=True) as out:
            out.write(file.after)
            os.fchmod(out.fileno(), mode)


def check_folder_target(folder: Path, to: Path, *, force: bool) -> None:
    """Raise the errors of `write_folder` that can be found before any work."""
    inner, outer = to.resolve(), folder.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise NotWritableError(
            f"{to}: lies inside {folder} or contains it", "name a folder beside it with -o"
        )
    if not to.parent.is_dir():
        raise NotWritableError(f"{to.parent}: no such folder", "create it first")
    if to.is_symlink() or (to.exists() and not to.is_dir()):
        raise NotWritableError(f"{to}: not a folder", "name another folder with -o")
    if to.is_dir() and not force and any(to.iterdir()):
        raise WouldOverwriteError(
            f"{to}: already exists and is not empty", "name another folder, or pass --force"
        )


def _copy(folder: Path, to: Path, contents: Mapping[Path, bytes]) -> None:
    """Copy `folder` to `to`, with `contents` in place of some files. Links stay links."""
    to.mkdir()
    for path in files_of(folder):
        name = path.relative_to(folder)
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        elif name in contents:
            target.write_bytes(contents[name])
            shutil.copymode(path, target)
        elif path.is_file():  # no sockets or pipes
            shutil.copy2(path, target)


def beside(path: Path, target: Target = XLA) -> Path:
    """Return the path for the rewritten form of the script at `path`: `train.py` → `train_xla.py`."""
    return path.with_name(f"{path.stem}_{target.removeprefix('torch_')}{path.suffix}")


def write(rewrite: Rewrite, to: Path, *, force: bool = False, in_place: bool = False) -> bool:
    """Write the rewritten script to `to` with the original's permissions. Return whether that was needed.

    Raises:
        NotWritableError: the file or its folder is read-only or missing.
        WouldOverwriteError: another file exists there and `force` is false, or the original is there and
            `in_place` is false.
        OutputError: the disk refuses.
    """
    check_target(rewrite, to, force=force, in_place=in_place)
    if to.exists() and to.read_bytes() == rewrite.data:
        return False
    mode = stat.S_IMODE(rewrite.path.stat().st_mode)
    with atomic_write(to, overwrite=True) as file:
        file.write(rewrite.data)
        os.fchmod(file.fileno(), mode | stat.S_IWUSR)
    return True


def write_all(
    rewrites: Sequence[tuple[Rewrite, Path]], *, force: bool = False, in_place: bool = False
) -> None:
    """Write each changed script, if all of them can be written.

    Raises:
        NotWritableError, WouldOverwriteError: see `write`. Raised before the first is written.
    """
    changed = [(rewrite, to) for rewrite, to in rewrites if rewrite.changed]
    for rewrite, to in changed:
        check_target(rewrite, to, force=force, in_place=in_place)
    for rewrite, to in changed:
        write(rewrite, to, force=force, in_place=in_place)


def check_target(rewrite: Rewrite, to: Path, *, force: bool, in_place: bool = False) -> None:
    """Raise the errors of `write` that can be found before writing."""
    if to.is_dir():
        raise NotWritableError(f"{to}: is a directory", "name a file with -o")
    if not to.parent.is_dir():
        raise NotWritableError(f"{to.parent}: no such folder", "create it first")
    if not to.exists():
        return
    if not to.is_file():  # a pipe has no end
        raise NotWritableError(f"{to}: not a file", "name a file with -o, or use --diff")
    if not to.stat().st_mode & stat.S_IWUSR:
        raise NotWritableError(
            f"{to}: is read-only", "change its permissions, or name another file with -o"
        )
    if to.samefile(rewrite.path):
        if not in_place:
            raise WouldOverwriteError(
                f"{to}: is the original", "name another file with -o, or pass --in-place"
            )
    elif not force and to.read_bytes() != rewrite.data:
        raise WouldOverwriteError(
            f"{to}: already exists with other content",
            "name another file with -o, or pass --force to replace it",
        )
