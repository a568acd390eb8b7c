"""Rewritten script and the modules that it imports, in a temporary folder while it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from migrate.errors import MigrateError
from migrate.model.project.project import Project, root_of
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import files_of, rewrite_folder
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.results import Note
from migrate.rewrite.write import beside
from shims._started import stand_in


class NotInFolderError(MigrateError):
    """The folder with the rewritten project has no file for the script.

    Remedy: give the folder that `migrate rewrite FOLDER -o` wrote of the project, or the rewritten file.
    """


class NotRewrittenError(MigrateError):
    """The script could not be rewritten.

    Remedy: as the message says.
    """


@dataclass(frozen=True)
class RewrittenFiles:
    """Content of a script and of other files of its project, to run.

    Attributes:
        script: the original script.
        root: the folder of the project.
        contents: content of each new or changed file, by the path of the original.
        findings: remaining manual work, with the file.
        changed: names of the rewritten files, as a user would write them.
        read: number of files that were read.
        problems: why some files could not be rewritten. They run unchanged.
        from_copy: whether the files are from a rewritten copy of the project, and keep their names.
    """

    script: Path
    root: Path
    contents: Mapping[Path, bytes]
    findings: tuple[tuple[str, Note], ...] = ()
    changed: tuple[str, ...] = ()
    read: int = 1
    problems: tuple[str, ...] = ()
    from_copy: bool = False


def rewritten_with_imports(script: Path, options: RewriteOptions = DEFAULT) -> RewrittenFiles:
    """Return the rewritten form of `script` and of all files of its project that it imports.

    The files are rewritten together, as by `migrate rewrite FOLDER`: each file is analyzed with the others.

    Args:
        script: the script.
        options: the form of the output.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError: the script cannot be read.
        NotRewrittenError: the script could not be rewritten.
        RuleConflictError, NotStableError: a defect of the rules.
    """
    root = root_of(script)
    reached = [path for path in Project.of_script(script).modules if path.is_relative_to(root)]
    resolved = script.resolve()
    if set(reached) <= {resolved}:
        alone = rewrite_file(script, options)
        return RewrittenFiles(
            script,
            root,
            {resolved: alone.data},
            tuple((str(script), note) for note in alone.findings),
            (str(script),) if alone.changed else (),
        )
    done = rewrite_folder(root, options=options, only=reached)

    def shown(name: Path) -> str:
        path = root / name
        near = [folder for folder in (script.resolve().parent, root) if path.is_relative_to(folder)]
        return str(path.relative_to(near[0]))

    files = {root / file.name: file for file in done.files}
    mine = files.get(resolved)
    if mine is not None and mine.problem:
        raise NotRewrittenError(
            mine.problem, "fix the script, or rewrite it alone and pass --rewritten"
        )
    changed = sorted(done.changed, key=lambda file: root / file.name != resolved)
    return RewrittenFiles(
        script,
        root,
        {resolved: script.read_bytes()} | {root / file.name: file.after for file in changed},
        tuple((shown(name), note) for name, note in done.left_to_do),
        tuple(shown(file.name) for file in changed),
        len(reached),
        tuple(f"{shown(file.name)}: {file.problem}" for file in done.problems),
    )


def rewritten_in(folder: Path, script: Path) -> RewrittenFiles:
    """Return the files in a rewritten copy of the project of `script` that differ from the project.

    Raises:
        NotInFolderError: the copy has no file for the script.
    """
    resolved = script.resolve()
    roots = [
        root
        for root in reversed(resolved.parents)
        if (folder / resolved.relative_to(root)).is_file()
    ]
    if not roots:
        raise NotInFolderError(
            f"{folder} has no {script.name}",
            "give the folder that `migrate rewrite FOLDER -o` wrote, or the rewritten file itself",
        )
    root = roots[0]
    contents, changed = {}, []
    for path in files_of(folder):
        original = root / path.relative_to(folder)
        if not path.is_file():
            continue
        same_size = original.is_file() and original.stat().st_size == path.stat().st_size
        if original != resolved and same_size and original.read_bytes() == path.read_bytes():
            continue
        contents[original] = path.read_bytes()
        if path.suffix == ".py":
            changed.append(str(path.relative_to(folder)))
    return RewrittenFiles(
        script, root, contents, changed=tuple(changed), read=len(changed), from_copy=True
    )


@contextmanager
def written_apart(done: RewrittenFiles) -> Iterator[Path]:
    """Yield the path of the rewritten script, written for as long as the context lasts.

    The script and the rewritten modules lie in a folder of their own. `migrate.prove.run` gives them the
    `__file__` and the imports of the originals.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-rewritten-") as name:
        folder = Path(name).resolve()
        written = {}
        for original, data in done.contents.items():
            path = folder / original.relative_to(done.root)
            is_named_anew = path.suffix == ".py" and not done.from_copy
            written[original] = beside(path) if is_named_anew else path
            written[original].parent.mkdir(parents=True, exist_ok=True)
            written[original].write_bytes(data)
        script = written.pop(done.script.resolve())
        stand_in.mark(script, done.script, written)
        yield script
