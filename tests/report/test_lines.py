"""What rich must leave as it is, and what is printed where nobody looks at a screen."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.table import Table

from converters.mapping.plan import Outcome, Plan, Row
from migrate.check.hazard import Severity
from migrate.cli import commands
from migrate.cli.show import show
from migrate.counts import binary_size
from migrate.devices.report import Chip, ChipProgram, DevicesReport
from migrate.doctor import Check, Diagnosis, Status
from migrate.fit.verdict import FitReport
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Interval
from migrate.observe.report import (
    Divergence,
    Fallback,
    Loop,
    Observed,
    ObservedLine,
    ObservedRead,
    Recompilation,
    Unended,
    Untrained,
)
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.resume import Direction, ResumeProof
from migrate.report.text.assess import assess_summary
from migrate.report.text.doctor import devices_summary, diagnosis_summary
from migrate.report.text.fit import fit_summary
from migrate.report.text.folder import folder_summary
from migrate.report.text.parity.summary import parity_summary
from migrate.report.text.prove import proof_summary, resume_summary
from migrate.report.text.rewrite import rewrite_summary
from migrate.report.text.run import run_summary
from migrate.report.text.tables import plain_table
from migrate.report.text.weights import plan_summary
from migrate.rewrite.results import FileRewrite, FolderRewrite, Note, Rewrite
from migrate.syntax.source import parse
from tests.assess import sample_assessments as assessments
from tests.parity import sample_comparisons as comparisons
from tests.report.test_prove_page import proof

CODES = ":100: :on: :key:"  # a line of a file, and words, to everybody but rich


def marked(value: Any) -> Any:
    """`value` with `CODES` in every text of it."""
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, str):
        return f"{value}{CODES}"
    if isinstance(value, tuple):
        return tuple(marked(one) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: marked(getattr(value, name)) for name in fields})
    return value


NOTES = (
    Note(100, 7, "unhandled", "torch.cuda.x: remove it"),
    Note(200, 7, "unhandled", "torch.cuda.y: remove it"),
    Note(300, 1, "pinned-memory", "pin_memory=args.pin_memory only warns on XLA"),
)
PATH = Path(f"a{CODES}.py")


def script() -> Iterable[Any]:
    done = Rewrite(parse(b"x = 1\n", PATH), b"x = 2\n", marked(NOTES), marked(NOTES))
    return rewrite_summary(done, PATH)


def folder() -> Iterable[Any]:
    file = FileRewrite(PATH, b"x = 1\n", b"x = 2\n", marked(NOTES), marked(NOTES), CODES)
    left = tuple((PATH, note) for note in marked(NOTES))
    return folder_summary(FolderRewrite(Path(CODES), (file,), 1, (PATH,), left), PATH)


def ran() -> Iterable[Any]:
    line = ObservedLine("train.py", 100, "loss.item()")
    interval = Interval(0, 1, DumpFrame("main", "train.py", 1), 0.1, 0.1, 1, 0.1, 1, 1, 1, {}, ())
    found = Observed(
        ranks=2,
        loops=(Loop(line, 3, 3, 1, 1, 0.5, 0.5, 0.1, 1.0, 0.0),),
        reads=(ObservedRead(line, ExecutionCause.READ, 2, 1.0, (0,)),),
        recompilations=(Recompilation(2, line, ("a shape",), (0, 1)),),
        fallbacks=(Fallback("aten::nonzero", 1, (line,)),),
        divergences=(Divergence(1, (0, 1), (line, None), ("an op",)),),
        unended=(Unended(line, 9, (0,)),),
        simulated=True,
        steps=(interval,),
        untrained=(Untrained(line, "Adam", 4, 3, (0,)),),
        alone=(
            Divergence(2, (0, 1), (line, None), ("another op",)),
            Divergence(2, (0, 2), (line, None), ("a third op",), pending=True),
        ),
    )
    return run_summary(dataclasses.replace(marked(found), steps=(interval,)))


def proven() -> Iterable[Any]:
    return proof_summary(marked(proof(ProofVerdict.DIFFERS, (1.5, 1.5))))


def resumed() -> Iterable[Any]:
    direction = Direction(CODES, marked(proof(ProofVerdict.MATCH, (1.5, 1.5))))
    return resume_summary(ResumeProof(PATH, (direction,)))


def planned() -> Iterable[Any]:
    return plan_summary(
        marked(Plan("net.pt", (Row("a.weight", (2,), "float32", Outcome.DROPPED),))), (CODES,)
    )


def doctor() -> Iterable[Any]:
    return diagnosis_summary(marked(Diagnosis((Check("x", Status.FAIL, "found", "mend it"),))))


def devices() -> Iterable[Any]:
    chip, program = Chip(0, "TPU", "core 0", "host"), ChipProgram("matmul", "12ab", 0.0, 1.0, 1)
    return devices_summary(marked(DevicesReport("x", (chip,), (program,), 2, 8, (), ("n",), 1.0)))


def parity() -> Iterable[Any]:
    return parity_summary(marked(comparisons.parting()))


def assessed() -> Iterable[Any]:
    return assess_summary(
        assessments.assessment(assessments.verdict(), assessments.verdict("v6e-8", 0.03))
    )


def test_memory_is_counted_in_powers_of_1024() -> None:
    sizes = [binary_size(count) for count in (512, 63_000, 6_267_392, 16_911_433_728)]
    assert sizes == ["512 B", "61.5 KiB", "6.0 MiB", "15.75 GiB"]


def fitted() -> Iterable[Any]:
    verdicts = (assessments.verdict(), assessments.verdict("v6e-256", 0.03, "too big"))
    return fit_summary(FitReport("train.py", True, verdicts, ("a note",)))


VIEWS = (script, folder, ran, proven, resumed, planned, doctor, devices, parity)


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [_Screen, io.StringIO], ids=["a terminal", "a pipe"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_text_becomes_a_picture(
    view: Callable[[], Iterable[Any]],
    stream: type[io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = stream()
    monkeypatch.setattr("sys.stdout", printed)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "dumb")
    show(*view())
    text = printed.getvalue()
    assert not {"💯", "🔛", "🔑"} & set(text)
    assert CODES in text


def test_progress_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    from migrate.cli.progress import moving_bytes, working

    screen = _Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with working(quiet=False) as say:
        say(f"reading {CODES}[b]")
    with moving_bytes(f"converting {CODES}[b]", quiet=False) as moved:
        moved(1, 2)
    assert "💯" not in screen.getvalue()
    assert f"reading {CODES}[b]" in screen.getvalue()
    assert f"converting {CODES}[b]" in screen.getvalue()


def test_a_pipe_gets_each_row_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr("sys.stdout", printed)
    monkeypatch.delenv("COLUMNS", raising=False)
    table = plain_table("key", "note")
    table.add_row("a.b" * 60, "some words " * 30)
    show(table)
    head, row = printed.getvalue().splitlines()
    assert head.split() == ["key", "note"]
    assert row.startswith("a.b" * 60)
    assert row.endswith("words")


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("stream", [_Screen, io.StringIO], ids=["a terminal", "a pipe"])
@pytest.mark.parametrize("view", [*VIEWS, assessed, fitted])
def test_no_table_is_wider_than_the_screen_or_120_columns(
    view: Callable[[], Iterable[Any]],
    stream: type[io.StringIO],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = stream()
    monkeypatch.setattr("sys.stdout", printed)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    parts = list(view())
    show(*(part for part in parts if stream is _Screen or isinstance(part, Table)))
    assert all(len(line) <= min(width, 120) for line in printed.getvalue().splitlines())


@pytest.mark.parametrize(
    ("view", "cells"),
    [
        (ran, ["0.50 s", "100.0 ms"]),
        (proven, ["1.0e-07"]),
        (fitted, ["v6e-256", "7.88 GiB", "100.00 ms", "15.75 GiB (50%)"]),
        (assessed, ["v5e-8", "100.00 ms", "120,000"]),
    ],
)
def test_no_number_is_broken_on_80_columns(
    view: Callable[[], Iterable[Any]], cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = _Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    show(*view())
    assert [cell for cell in cells if cell not in screen.getvalue()] == []


# As many alike as are listed one by one; more are one line.
COUNT = 5


class TestFindings:
    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """A folder whose path alone is wider than a screen."""
        folder = tmp_path / "/".join(["a_folder_with_a_long_name"] * 8)
        folder.mkdir(parents=True)
        uses = "".join(f"print(torch.cuda.mem_get_info(), {n})\n" for n in range(COUNT))
        (folder / "train.py").write_text(f"import torch\n\n{uses}")
        return folder

    def test_one_is_one_line_where_stdout_is_no_terminal(self, project: Path) -> None:
        for given in (project, project / "train.py"):
            done = CliRunner().invoke(commands, ["rewrite", str(given), "--diff"])
            assert done.exit_code == 1
            lines = [line for line in done.stderr.splitlines() if line.startswith(str(project))]
            found = [line for line in lines if line.startswith(f"{project / 'train.py'}:")]
            found = [line for line in found if "left to do" not in line]
            assert len(found) == COUNT
            for number, line in enumerate(found, 3):
                place, rule, *message = line.removeprefix(f"{project / 'train.py'}:").split()
                assert place == f"{number}:7:"
                assert rule
                assert len(message) > 3

    def test_a_terminal_says_once_what_there_is_to_do(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from migrate.rewrite.folder import rewrite_folder

        screen = _Screen()
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("TERM", "dumb")
        for name in ("second.py", "third.py"):
            (project / name).write_bytes((project / "train.py").read_bytes())
        show(*folder_summary(rewrite_folder(project), None))
        text = " ".join(screen.getvalue().split())
        assert f"{3 * COUNT} left to do by hand, in the order in which to fix them" in text
        assert f"the same {3 * COUNT - 1} times more: " in text
        assert "and 6 more (--json has them all)" in text

    def test_what_the_script_stands_with_is_no_failure(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(
            "import torch\nfrom torch.utils.data import DataLoader\n\n\n"
            "def loader(data, args):\n"
            "    return DataLoader(data, pin_memory=args.pin_memory)\n\n\n"
            "@torch.jit.script\ndef gelu(x):\n    return x * torch.sigmoid(1.702 * x)\n"
        )
        done = CliRunner().invoke(commands, ["rewrite", str(path), "--diff"])
        assert "2 to look at" in done.stderr
        assert "by hand" not in done.stderr
        assert done.exit_code == 0
        (told,) = json.loads(CliRunner().invoke(commands, ["rewrite", str(path), "--json"]).stdout)
        assert {one["severity"] for one in told["findings"]} == {"info"}
        path.write_text(f"{path.read_text()}\n\nprint(torch.cuda.mem_get_info())\n")
        done = CliRunner().invoke(commands, ["rewrite", str(path), "--diff"])
        assert "1 left to do by hand, 2 to look at" in done.stderr
        assert done.exit_code == 1

    def test_words_decide_nothing(self) -> None:
        quoted = Note(1, 1, "compile", 'torch.compile(net, mode=pick("see that it is fast"))')
        assert quoted.severity is Severity.ERROR
