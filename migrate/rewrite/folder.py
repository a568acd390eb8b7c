"""Rewrite a whole folder: changed files, and the remaining manual work in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrate.catalogue.prescan import concerns_rules
from migrate.check.config import Config
from migrate.check.project import is_excluded
from migrate.counts import many
from migrate.errors import MigrateError
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.reexports import reexports_of
from migrate.model.calls.registries import registries_of
from migrate.model.facts import AnalyzedProject, ModuleCalls, analyzed, calls_of_file
from migrate.model.objects.asked import spelled_devices
from migrate.model.processes.framework_training import led_of
from migrate.model.processes.optional_groups import optional_groups
from migrate.model.processes.started import is_distributed_training, starting_replicas
from migrate.model.project.project import Project
from migrate.model.project.shadowing import shadowing
from migrate.progress import Progress, no_progress
from migrate.reading.facts import facts_of
from migrate.reading.project.reach import Leaving, entered_by_steps
from migrate.reading.project.workers import Workers, keep, let_go
from migrate.rewrite.applied_plan import in_order as by_line
from migrate.rewrite.left.after import left_for, left_in_functions, note_of
from migrate.rewrite.left.answered import without_answered
from migrate.rewrite.left.codes import selected
from migrate.rewrite.left.configurations import absent_submodules, in_configurations
from migrate.rewrite.left.function_lines import FunctionLines, NeighborLines
from migrate.rewrite.left.order import in_order
from migrate.rewrite.notebook import in_cells
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.own_shims import PORTABLE, OwnShimsError, check_own_shims
from migrate.rewrite.pipeline import Draft, first_turn, next_turn, with_hazards
from migrate.rewrite.results import FileRewrite, FolderRewrite
from migrate.rewrite.workspace import Workspace
from migrate.syntax.interpreter import deep, seldom_collected
from migrate.syntax.notebook.cells import join
from migrate.syntax.notebook.text import SUFFIX, parse_notebook
from migrate.syntax.source import UnreadableScriptError, parse, why_unread
from migrate.written import is_written

# Not part of the source: not read, and left out of the rewritten folder.
LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
    | {".ipynb_checkpoints"}
)


@seldom_collected()
@deep
def rewrite_folder(
    folder: Path,
    *,
    options: RewriteOptions = DEFAULT,
    processes: int | None = None,
    progress: Progress = no_progress,
    only: Collection[Path] | None = None,
    projects: Sequence[AnalyzedProject] = (),
) -> FolderRewrite:
    """Return the rewritten form of every Python file and notebook of `folder`, without writing it.

    A file that cannot be read, or on which a rule fails, stays as it is. Its problem is in the result, and
    the other files are rewritten.

    Args:
        folder: the folder of the project.
        options: the form of the output.
        processes: number of worker processes. Default: one for each core.
        progress: receives the progress.
        only: the files to rewrite, all in `folder`. None: every file.
        projects: projects that are already analyzed.

    Raises:
        UnreadableScriptError: there is no such folder.
        OwnShimsError: the project has a module `shims` of its own, and the result needs the library.
    """
    if not folder.is_dir():
        raise UnreadableScriptError(f"{folder}: no such folder", "check the path")
    everything = list(files_of(folder) if only is None else only)
    code = (path for path in everything if path.suffix in (".py", SUFFIX))
    # A link is copied as a link. Its target is rewritten if it is in the folder.
    real = (path for path in code if path.is_file() and not path.is_symlink())
    source = (path for path in real if not is_written(path, folder))
    paths = sorted(path for path in source if not is_excluded(path, options.config, folder))
    contents = {path: path.read_bytes() for path in paths}
    concerned = [path for path in paths if concerns_rules(contents[path])]
    progress(f"reading {many(len(paths), 'file')} of {folder}")
    project = _project(folder, paths, {path: contents[path] for path in concerned})
    of_project = analyzed(project, projects)
    first = of_project.analysis
    concerned = [path for path in paths if path in concerned or _is_concerned(path, first)]
    for path in concerned if options.style == "portable" else ():
        check_own_shims(shadowing("shims", path), PORTABLE)
    calls = {
        path: of_project.calls.get(path.resolve()) or calls_of_file(first, path)
        for path in concerned
    }
    entered = entered_by_steps(first)
    first.evaluator.let_go()  # few questions about it follow
    size = sum(len(scope.module.data) for scope in first.scopes.values())
    with Workers(len(concerned), processes, size) as workers:

        def job(path: Path, draft: Draft | None = None) -> _Job:
            name, again = path.relative_to(folder), path.resolve() in entered
            return _Job(name, path, contents[path], calls[path], options, again, draft)

        jobs = [job(path) for path in concerned]
        done = dict(zip(concerned, workers.run(_begin, jobs, progress, "rewriting"), strict=True))
        last, at_first = first, dict(calls)
        lines, changed = NeighborLines(contents), dict[Path, bytes]()
        for path in concerned:
            lines.reported(path, done[path].file, {})
        function_lines = FunctionLines(first)
        while going_on := [path for path in concerned if done[path].draft is not None]:
            changed = {
                path: rewrite.file.after for path, rewrite in done.items() if rewrite.file.changed
            }
            last = Analysis(first.project.changed(changed), first)
            function_lines.turn(last, changed)
            known: dict[Path, Mapping[Path, bytes]] = {}
            for path in going_on:
                begun = done[path].draft
                if begun is not None and begun.turns == 0:
                    calls[path], known[path] = at_first[path], {}
                    function_lines.known_at_first(path)
                else:
                    calls[path], known[path] = calls_of_file(last, path), changed
                    function_lines.known_now(path)
            jobs = [job(path, done[path].draft) for path in going_on]
            done |= zip(going_on, workers.run(_go_on, jobs, progress, "checking"), strict=True)
            for path in going_on:
                lines.reported(path, done[path].file, known[path])
        for path, facts in _with_new_facts(paths, done, last).items():
            known_before, calls[path] = calls.get(path), facts
            once_more = _begin(job(path))
            if once_more.file.changed:  # an edit that only the others' edits make possible
                if known_before is not None:
                    calls[path] = known_before
                continue
            done[path] = once_more
            function_lines.known_now(path)
            lines.reported(path, once_more.file, changed)
        files = [lines.at_origin(path, rewrite.file) for path, rewrite in done.items()]
        left = {
            path.resolve(): rewrite.leaving
            for path, rewrite in done.items()
            if rewrite.leaving is not None
        }
        files = _with_functions(
            folder,
            first,
            last,
            files,
            calls,
            contents,
            left,
            function_lines,
            workers,
            options.config,
        )
        files = without_answered(files, last.project, calls)
        files = _with_unread(folder, first.project, files, contents)
    more = list(absent_submodules(folder, everything))
    if any(file.changed or file.findings for file in files):
        more += in_configurations(folder, everything, options.config.target)
    more = [replace(file, findings=tuple(selected(file.findings, options.config))) for file in more]
    files = sorted([*files, *more], key=lambda file: file.name)
    named = {folder / file.name for file in files}
    return FolderRewrite(
        folder,
        tuple(files),
        sum(path.suffix != SUFFIX for path in set(paths) - named),
        tuple(path.relative_to(folder) for path in paths if path.suffix == SUFFIX),
        in_order(files, first.project),
    )


def _with_unread(
    folder: Path, project: Project, files: Sequence[FileRewrite], contents: Mapping[Path, bytes]
) -> list[FileRewrite]:
    """Return `files` and the unreadable files that they import, although these concern no rule."""
    known, unread = {file.name for file in files}, project.unread_imports
    more = [
        FileRewrite(path.relative_to(folder), data, data, problem=why_unread(path))
        for path, data in contents.items()
        if path.relative_to(folder) not in known and path.resolve() in unread
    ]
    return sorted([*files, *more], key=lambda file: file.name)


def _is_concerned(path: Path, analysis: Analysis) -> bool:
    """Whether a file without names of a rule trains, starts training, or gets such names from other files."""
    return (
        path.resolve() in spelled_devices(analysis)
        or _is_handed_names(path, analysis)
        or _starts_training(path, analysis)
        or _holds_step_loop(path, analysis)
    )


def _with_new_facts(
    paths: Sequence[Path], done: Mapping[Path, _Done], last: Analysis
) -> Mapping[Path, ModuleCalls]:
    """Return the files that no edit changes, but of whose calls the edits of others make a hazard.

    The launch that one file gets starts the replicas that another file lets join a process group.
    """
    still = {
        path.resolve(): path
        for path in paths
        if path.suffix != SUFFIX and (path not in done or not done[path].file.changed)
    }
    grouping = optional_groups(last) if any(known.file.changed for known in done.values()) else {}
    return {still[path]: calls_of_file(last, still[path]) for path in grouping if path in still}


def _is_handed_names(path: Path, analysis: Analysis) -> bool:
    """Whether a file uses names of rules through other files: `comm.barrier()`."""
    top = analysis.scopes.get(path.resolve())
    if top is None:
        return False
    names = [*reexports_of(analysis).of_file(top).values()]
    names += dict(analysis.evaluator.from_outside(top)).values() if top.stars else ()
    return concerns_rules("\n".join(names).encode())


def _holds_step_loop(path: Path, analysis: Analysis) -> bool:
    """Whether a loop of the file trains by other functions: `for batch in loader: self.step(batch)`."""
    top = analysis.scopes.get(path.resolve())
    if top is None:
        return False
    regions = (region for root in top.all_roots for region in analysis.regions(root))
    hidden = registries_of(analysis).loops(top)
    return any(region in analysis.step_loops for region in regions) or any(True for _ in hidden)


def _starts_training(path: Path, analysis: Analysis) -> bool:
    """Whether a file starts training on several replicas without naming replicas itself."""
    top = analysis.scopes.get(path.resolve())
    if top is None:
        return False
    return path.resolve() in starting_replicas(analysis) or is_distributed_training(analysis, top)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the source files of `folder`, links included. Caches and environments are left out."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(names))


@dataclass(frozen=True)
class _Job:
    name: Path  # in the folder
    path: Path
    data: bytes
    calls: ModuleCalls
    options: RewriteOptions
    again: bool  # whether it may be analyzed again with its functions that steps of other files run
    draft: Draft | None = None  # its content after the turns so far

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == SUFFIX


@dataclass(frozen=True)
class _Done:
    """A file in its current state, with the draft for the next turn.

    Args:
        file: its present state.
        draft: the draft. None if the file is settled.
        leaving: functions of other files that its own steps run, if it is settled.
    """

    file: FileRewrite
    draft: Draft | None = None
    leaving: tuple[Leaving, ...] | None = None


def _project(folder: Path, paths: Sequence[Path], contents: Mapping[Path, bytes]) -> Project:
    """Return the project of the scripts, and of the notebooks with known content."""
    read = [path for path in paths if path.suffix != SUFFIX or path in contents]
    return Project.of_files(folder, read, contents)


def _begin(job: _Job) -> _Done:
    """Run the first turn of the rules on a file."""
    return _tried(_first, job)


def _go_on(job: _Job) -> _Done:
    """Run the next turn of the rules on a file."""
    return _tried(_next, job)


def _tried(turn: Callable[[_Job], _Done], job: _Job) -> _Done:
    """Return a file after a turn, or the file as it was, with the reason, if the turn fails."""
    try:
        return turn(job)
    except OwnShimsError:
        raise  # of the whole project
    except MigrateError as error:
        problem = str(error)
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        problem = f"{job.name}: internal error ({what}); please report this with the file"
    return _Done(FileRewrite(job.name, job.data, job.data, problem=problem))


@deep
def _first(job: _Job) -> _Done:
    data = job.data
    if job.is_notebook:
        data = join(parse_notebook(data, job.path)).code.encode()
    source = parse(data, job.path)
    return _after(job, *first_turn(source, calls=job.calls, options=job.options))


@deep
def _next(job: _Job) -> _Done:
    assert job.draft is not None
    if job.draft.turns == 0:  # restarted, because some of its edits are withdrawn
        data = job.draft.before
        begun = first_turn(
            parse(data, job.path),
            calls=job.calls,
            options=job.options,
            withdrawn=job.draft.withdrawn,
        )
        return _after(job, *begun)
    return _after(job, *next_turn(job.draft, calls=job.calls, options=job.options))


def _after(job: _Job, draft: Draft, script: Workspace) -> _Done:
    """Return the file after a turn, with its remaining hazards if it is settled."""
    done = _looked_at(job, draft, script)
    let_go(script)
    return done


def _looked_at(job: _Job, draft: Draft, script: Workspace) -> _Done:
    if not draft.settled:
        return _Done(_file(job, draft), draft)
    facts = facts_of(script)
    if draft.led:
        return _Done(_file(job, with_hazards(draft, facts, job.options.config)))
    file = _file(job, with_hazards(draft, facts, job.options.config))
    if job.is_notebook:
        return _Done(file)
    if job.again:
        keep(script)
    return _Done(file, leaving=left_for(facts, job.name.as_posix(), draft.before, draft.data))


def _file(job: _Job, draft: Draft) -> FileRewrite:
    """Return the present state of a file. A notebook that is not settled is the joined code of its cells."""
    data, edits, findings, hints = draft.data, draft.edits, draft.findings, draft.hints
    comments = draft.comments
    if job.is_notebook and draft.settled:
        notebook = parse_notebook(job.data, job.path)
        done = in_cells(notebook, data, edits, (*findings, *hints), job.options, draft.comments)
        data, edits, findings, hints = done.data, done.edits, done.findings, done.hints
        comments = done.comments
    return FileRewrite(job.name, job.data, data, edits, findings, hints=hints, comments=comments)


def _with_functions(
    folder: Path,
    first: Analysis,
    last: Analysis,
    files: Sequence[FileRewrite],
    calls: Mapping[Path, ModuleCalls],
    contents: Mapping[Path, bytes],
    leaving: Mapping[Path, tuple[Leaving, ...]],
    function_lines: FunctionLines,
    workers: Workers,
    config: Config,
) -> list[FileRewrite]:
    """Return `files` with the hazards of functions that the steps of other files run.

    A file that concerns no rule may hold such a function. It is added.
    """
    root = folder.resolve()
    led = led_of(first)  # a framework runs these
    left = left_in_functions(
        first,
        last,
        {path.resolve(): of_file for path, of_file in calls.items()},
        {path.resolve(): d for path, d in contents.items() if path.resolve() not in led},
        {root / file.name: file.findings for file in files},
        root,
        leaving,
        workers.run,
        function_lines,
        config.target,
    )
    notes = {
        path.relative_to(root): tuple(selected(map(note_of, remaining), config))
        for path, remaining in left.items()
        if remaining and path not in led
    }
    files_by_name = {file.name: file for file in files}
    for name, more in notes.items():
        data = contents.get(folder / name, b"")
        file = files_by_name.get(name) or FileRewrite(name, data, data)
        known = {(note.line, note.rule) for note in file.hints}
        hints = [n for n in more if n.is_hint and (n.line, n.rule) not in known]
        findings = (*file.findings, *(note for note in more if not note.is_hint))
        files_by_name[name] = replace(
            file, findings=by_line(findings), hints=by_line((*file.hints, *hints))
        )
    return [files_by_name[name] for name in sorted(files_by_name)]
