"""Rewrite the code cells of a Jupyter notebook as one script. The rest of the file stays unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from migrate.catalogue.prescan import concerns_rules
from migrate.catalogue.target import TPU
from migrate.check.finding import UNREADABLE
from migrate.errors import MigrateError
from migrate.rewrite.left.codes import selected
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.pipeline import NotStableError, check_stable, rewrite_source
from migrate.rewrite.results import NO_COMMENTS, Comments, Note, Rewrite
from migrate.syntax.notebook.cells import RULE, Cells, NotMappedError, join
from migrate.syntax.notebook.shell import ADVICE, ADVICE_ON_TORCH_TPU, shell_advice
from migrate.syntax.notebook.text import WRITES, Cell, Notebook, parse_notebook, written_scripts
from migrate.syntax.source import NotPythonError, parse


def rewrite_notebook(notebook: Notebook, *, options: RewriteOptions = DEFAULT) -> Rewrite:
    """Return the rewritten form of `notebook`.

    Raises:
        RuleConflictError, NotStableError: a defect of the rules.
    """
    source = parse(join(notebook).code.encode(), notebook.path)
    done = rewrite_source(source, options=options)
    left = (*done.findings, *done.hints)
    rewrite = in_cells(notebook, done.data, done.edits, left, options, done.comments)
    return replace(rewrite, unread=done.unread)


def in_cells(
    notebook: Notebook,
    code: bytes,
    edits: Sequence[Note],
    findings: Sequence[Note],
    options: RewriteOptions = DEFAULT,
    comments: Comments = NO_COMMENTS,
) -> Rewrite:
    """Return the rewritten form of `notebook` from the rewritten code of its joined cells.

    The scripts that cells write are rewritten here.

    Args:
        notebook: the parsed notebook.
        code: the joined cells after the rules.
        edits, findings: edits and findings at lines of the joined cells, with hints.
        options: options of the rewrite.
        comments: comments that silence findings, at these lines.

    Raises:
        RuleConflictError, NotStableError: a defect of the rules.
    """
    cells = join(notebook)
    try:
        sources = cells.sources(code.decode())
    except NotMappedError:
        what = f"{notebook.path}: the rewritten code cannot be told apart into cells"
        raise NotStableError(what, "this is a bug; please report it with the notebook") from None
    notes = [_in_cell(note, cells) for note in edits]
    left = [_in_cell(note, cells) for note in findings]
    advice = ADVICE_ON_TORCH_TPU if options.config.target == TPU else ADVICE
    shell = shell_advice(notebook, advice)
    said = [Note(line, 1, RULE, why, number) for number, line, why in shell]
    left += selected((*_unread(cells), *said), options.config)
    for cell, script in written_scripts(notebook):
        written, of_script, left_of_script = _written(cell, script, notebook, options)
        sources |= written
        notes += of_script
        left += left_of_script
    data = notebook.with_sources(sources)
    if data != notebook.data:
        again = join(parse_notebook(data, notebook.path)).code.encode()
        if again != code:  # blank lines around a cell are the notebook's own
            check_stable(again, notebook.path, options=options)
    return Rewrite(
        notebook,
        data,
        _in_order(notes),
        _in_order([note for note in left if not note.is_hint]),
        hints=_in_order([note for note in left if note.is_hint]),
        comments=comments.moved(cells.place),
    )


def _written(
    cell: Cell, script: str, notebook: Notebook, options: RewriteOptions
) -> tuple[Mapping[int, str], list[Note], list[Note]]:
    """Return the rewritten source of a cell that writes a script, if it changes, and the notes."""
    match = WRITES.match(cell.source)
    assert match is not None
    above = cell.source.count("\n", 0, match.end())
    data = script.encode()
    if not concerns_rules(data):
        return {}, [], []
    path = notebook.path.parent / match[1]
    try:
        done = rewrite_source(parse(data, path), options=options)
    except NotPythonError as error:
        why = error.what.removeprefix(f"{path}:")
        return (
            {},
            [],
            [Note(1 + above, 1, RULE, f"{match[1]} is left as it is: {why}", cell.number)],
        )
    except MigrateError as error:
        return (
            {},
            [],
            [Note(1 + above, 1, RULE, f"{match[1]} is left as it is: {error}", cell.number)],
        )

    def here(note: Note) -> Note:
        return replace(note, line=note.line + above, cell=cell.number)

    # The text of a cell has no line feed at its end, but the script that it writes has one.
    tail = script[len(script.rstrip()) :]
    source = cell.source[: match.end()] + done.data.decode().rstrip() + tail
    changed = {cell.number: source} if done.changed else {}
    return (
        changed,
        [here(note) for note in done.edits],
        [here(note) for note in (*done.findings, *done.hints)],
    )


def _in_cell(note: Note, cells: Cells) -> Note:
    number, line = cells.place(note.line)
    message, wrong = cells.in_words(note.message), cells.in_words(note.wrong)
    return replace(note, line=line, cell=number, message=message, wrong=wrong)


def _unread(cells: Cells) -> Iterator[Note]:
    for unread in cells.unread:
        message = f"this cell is no Python 3 ({unread.why}): it is left as it is"
        yield Note(unread.line, unread.column, UNREADABLE, message, unread.number)


def _in_order(notes: list[Note]) -> tuple[Note, ...]:
    return tuple(sorted(notes, key=lambda note: (note.cell or 0, note.line, note.column)))
