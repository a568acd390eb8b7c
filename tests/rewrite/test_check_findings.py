"""`migrate check` says what `migrate rewrite` would do: what it leaves, and, marked, what it mends."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from migrate.catalogue.entry import CatalogueEntry
from migrate.catalogue.target import TPU, XLA
from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, Finding, Fix
from migrate.check.rules import all_hazards
from migrate.check.severity import Severity
from migrate.cli import commands
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import all_codes, code_of, with_used
from migrate.rewrite.options import DEFAULT
from migrate.rewrite.results import Comments, FileRewrite, Note, Rewrite
from migrate.rewrite.rules import all_rules, rules_for
from migrate.rewrite.write import rewrite_into
from migrate.syntax.origins import Message

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*/before.py"))
OF_RULES = [
    pytest.param(example.before, id=f"{rule.name}-{number}")
    for rule in all_rules()
    if rule.options == DEFAULT and not rule.notebook
    for number, example in enumerate(rule.examples)
]
OF_HAZARDS = [
    pytest.param(example.script, id=f"{hazard.code}-{number}")
    for hazard in all_hazards()
    for number, example in enumerate(hazard.examples)
]


def some(cases: list[Any], step: int) -> list[Any]:
    """Return each third of a `step` of `cases`: every `step`-th runs by default, the two between are long."""
    return [
        pytest.param(*case.values, id=case.id, marks=pytest.mark.long if number % step else ())
        for number, case in enumerate(cases)
        if number % (step // 3) == 0
    ]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def checked(path: Path) -> list[Finding]:
    """Return each finding, also those that the command shows as one since the file repeats them."""
    return findings_of([path], Config(root=path.parent))[1]


def left(done: Rewrite | FileRewrite) -> set[tuple[int, int, str]]:
    return {(note.line, note.column, code_of(note)) for note in (*done.findings, *done.hints)}


# Words of what a script is after its rewrite. A comma of the script before an arrow looks like a slip.
AFTER = re.compile(r"\bno longer\b|\bstarts them\b|\bstays (on|with)\b.*first|the rest runs|, →")


def holds(path: Path) -> None:
    """Assert of a script that `check` says exactly what `rewrite` does and leaves, before it is done."""
    done = rewrite_file(path)
    found = checked(path)
    unmarked = {(one.line, one.column, one.code) for one in found if one.fix is Fix.NONE}
    assert unmarked == left(done)
    marked = {one.line for one in found if one.fix is not Fix.NONE}
    fixable = [one.message for one in found if one.fix is not Fix.NONE]
    assert [message for message in fixable if AFTER.search(message)] == []
    elsewhere = {rule.name for rule in all_rules() if rule.reported_as} | {"comments"}
    assert {note.line for note in done.edits if note.rule not in elsewhere} <= marked
    after = path.with_name("after.py")
    after.write_bytes(done.data)
    assert [one for one in checked(after) if one.fix is not Fix.NONE] == []


@pytest.mark.parametrize("before", some(OF_RULES, 9))
def test_examples_of_rules(before: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(before)
    holds(path)


@pytest.mark.parametrize("script", some(OF_HAZARDS, 15))
def test_examples_of_hazards(script: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    holds(path)


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.parent.name for path in SCRIPTS])
def test_public_scripts(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(script.read_bytes())
    holds(path)


def test_a_folder(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.py").write_text("import os\n\nrank = int(os.environ['RANK'])\n")
    (project / "net.py").write_text("def loss_of(x):\n    return x[x > 0].sum()\n")
    (project / "train.py").write_text(
        "import torch\nfrom data import rank\nfrom net import loss_of\n\n\n"
        "def train(model, loader, optimizer):\n    model.cuda()\n    for x in loader:\n"
        "        loss = loss_of(model(x.cuda()))\n        loss.backward()\n"
        "        optimizer.step()\n"
    )
    done = rewrite_folder(project)
    found = checked(project)
    unmarked = {(one.path, one.line, one.code) for one in found if one.fix is Fix.NONE}
    assert unmarked == {
        (project / file.name, line, code) for file in done.files for line, _, code in left(file)
    }
    assert ("net.py", "XLA103") in {(path.name, code) for path, _, code in unmarked}
    rewrite_into(project, tmp_path / "after")
    assert [one for one in checked(tmp_path / "after") if one.fix is not Fix.NONE] == []


def test_a_problem_is_one_finding_about_the_script_as_it_is(tmp_path: Path) -> None:
    script = """\
import torch
import torch.distributed as dist


def train(model, loader, optimizer, held_out, rank):
    use_cuda = torch.cuda.is_available()
    backend = "nccl" if use_cuda else "gloo"
    dist.init_process_group(backend)
    for x in loader:
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(mean.item())
    model.eval()
    total = torch.zeros((), device="cuda")
    for x in held_out:
        y = model(x.cuda())
        total += y.sum()
    return total
"""
    (tmp_path / "train.py").write_text(script)
    found = {(one.code, script.splitlines()[one.line - 1].strip()) for one in checked(tmp_path)}
    assert ("XLA308", "print(mean.item())") in found
    assert ("XLA308", "mean = loss.detach().clone()") not in found
    assert ("XLA308", "dist.all_reduce(mean)") not in found
    assert ("XLA116", "for x in held_out:") in found
    assert "XLA215" not in {code for code, _ in found}
    messages = [one.message for one in checked(tmp_path)]
    assert not [
        message for message in messages if "any more" in message or "sync() below" in message
    ]
    assert any("torch.cuda.is_available: is False on a TPU" in message for message in messages)


def test_what_the_rewrite_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "shims.py").write_text("x = 1\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport shims\n\n"
        "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Linear(2, 2)).cuda()\n"
    )
    assert run("rewrite", script).exit_code == 2
    for path in (script, tmp_path):
        (one,) = [found for found in checked(path) if found.code == UNREADABLE]
        assert (one.path, one.severity, one.fix) == (path, Severity.ERROR, Fix.NONE)
        assert one.message.endswith("; rename the module")


class TestCodes:
    def test_each_rule_has_one(self) -> None:
        codes = [code for rule in all_rules() for code in rule.codes]
        assert set(codes) <= set(all_codes())
        # Two constructs that are wrong in the same way.
        codes = [code for rule in rules_for(XLA) for code in rule.codes]
        assert {code for code in codes if codes.count(code) > 1} == {"XLA704", "XLA810"}
        codes = [code for rule in rules_for(TPU) for code in rule.codes]
        assert {code for code in codes if codes.count(code) > 1} == {"XLA810"}

    @pytest.mark.parametrize("name", ["XLA806", "compile", "compile-backend"])
    def test_a_page_is_found_by_the_code_and_by_each_name(self, name: str) -> None:
        assert "# compile: " in run("check", "--explain", name).stdout
        assert run("check", "--explain", "XLA999").exit_code == 2


SCRIPT = """\
import torch
import torch.distributed as dist


def f(model, x):
    model = model.half()
    rows = x.cuda().sum()
    dist.send(x, dst=1)
    return model, rows
"""
SLOW = """\
import torch


def train(model, loader, optimizer):
    model.to("xla")
    for x in loader:
        x = x.to("xla")
        rows = x.nonzero()
        loss = model(x[rows]).mean()
        loss.backward()
        optimizer.step()
"""


class TestBothCommands:
    def test_a_comment_silences_a_line_for_both(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(
            SCRIPT.replace("half()", "half()  # migrate: ignore").replace(
                "dst=1)", "dst=1)  # migrate: ignore[XLA207]"
            )
        )
        assert [one.code for one in checked(path)] == ["XLA724"]
        done = run("rewrite", path, "--diff")
        assert (done.exit_code, "by hand" in done.stderr) == (0, False)

    def test_a_code_that_was_divided_still_silences(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(
            "import torch\n\nwith torch.cuda.stream(s):  # migrate: ignore[XLA801]\n    f()\n"
        )
        assert [one.code for one in checked(path) if one.line == 3] == []

    def test_a_comment_of_use_to_a_rule_is_not_unused(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text("import torch\n\nx = f()\nx = x.cuda()  # migrate: ignore[XLA724]\n")
        assert checked(path) == []
        path.write_text("import torch\n\nx = f()\nx = x.cuda()  # migrate: ignore[XLA101]\n")
        assert [one.code for one in checked(path)] == ["XLA724", "XLA001"]

    def test_a_comment_is_of_use_to_any_finding_of_its_line(self) -> None:
        comments = Comments({(None, 4): ("XLA724",)})
        notes = [Note(4, 5, "device", "moved"), Note(4, 9, "compile", "goes")]
        assert with_used(comments, notes).used == {(None, 4)}
        assert with_used(comments, notes[::-1]).used == {(None, 4)}
        assert with_used(comments, notes[1:]).used == frozenset()

    def test_the_configuration_holds_for_both(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT)
        (tmp_path / "pyproject.toml").write_text(
            "[tool.migrate]\nignore = ['XLA5']\nseverity = { XLA207 = 'info' }\n"
        )
        found = json.loads(run("rewrite", path, "--check", "--json").stdout)[0]["findings"]
        assert [(one["code"], one["severity"]) for one in found] == [("XLA207", "info")]
        codes = [one["code"] for one in json.loads(run("check", path, "--json").stdout)["findings"]]
        assert codes == ["XLA724", "XLA207"]

    def test_what_is_excluded_stays_as_it_is(self, tmp_path: Path) -> None:
        for name in ("old/train.py", "train.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(SCRIPT)
        (tmp_path / "pyproject.toml").write_text("[tool.migrate]\nexclude = ['old']\n")
        done = json.loads(run("rewrite", tmp_path, "--check", "--json").stdout)
        assert [file["path"] for file in done["files"]] == ["train.py"]
        found = json.loads(run("check", tmp_path, "--json").stdout)["findings"]
        assert {one["path"] for one in found} == {str(tmp_path / "train.py")}

    @pytest.mark.parametrize("command", [("check",), ("rewrite", "--diff")])
    def test_a_warning_fails_neither_unless_it_is_to(
        self, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        path = tmp_path / "train.py"
        path.write_text(SLOW)
        assert run(*command, path).exit_code == 0
        assert run(*command, path, "--fail-on", "warning").exit_code == 1
        (tmp_path / "pyproject.toml").write_text("[tool.migrate]\nfail-on = 'warning'\n")
        assert run(*command, path).exit_code == 1
        (tmp_path / "pyproject.toml").write_text("[tool.migrate]\nfail-on = 'never'\n")
        assert run(*command, path).exit_code == 2

    def test_what_is_mended_is_marked_and_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(SLOW)
        done = run("check", path)
        assert (
            f"{path}:7:9: XLA214 warning [*] XLA does not see where the step ends: put 5 statements"
            in done.stdout
        )
        assert f"{path}:8:16: XLA101 warning .nonzero()" in done.stdout
        assert "[*] `migrate rewrite` fixes 1 finding;" in done.stdout
        data = json.loads(run("check", path, "--json").stdout)
        assert [one["fix"] for one in data["findings"]] == ["safe", None]
        assert data["mended_by_rewrite"] == 1


class TestWhatOnlyTheRewriteSees:
    """Constructs that the hazards alone do not see: they stand far from where they matter."""

    @pytest.mark.parametrize(
        ("script", "code"),
        [
            ("model = build()\nmodel.compile(mode='max-autotune')\n", "XLA806"),
            (
                "options = dict(lr=0.1, fused=True)\n"
                "optimizer = torch.optim.AdamW(model.parameters(), **options)\n",
                "XLA807",
            ),
            (
                "state = torch.hub.load_state_dict_from_url(URL, map_location='cuda')\n",
                "XLA817",
            ),
            (
                "class Trainer:\n"
                "    def __init__(self, model):\n"
                "        self.model = model\n"
                "        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)\n\n"
                "    def prepare(self):\n"
                "        self.model.cuda()\n\n\n"
                "trainer = Trainer(torch.nn.Linear(2, 2))\n"
                "trainer.prepare()\n",
                "XLA805",
            ),
        ],
    )
    def test_check_names_it(self, tmp_path: Path, script: str, code: str) -> None:
        path = tmp_path / "train.py"
        path.write_text(f"import torch\n\n{script}")
        assert code in {one.code for one in checked(path)}


NAMED = """
import apex
import torch
from apex.parallel import SyncBatchNorm as Norm

Stream = getattr(torch.cuda, "Stream")
step = torch.cuda.make_graphed_callables(torch.nn.Linear(4, 1).cuda(), (torch.ones(4).cuda(),))
used = [torch.cuda.memory_stats() for _ in range(3) if torch.cuda.nvtx.range_push("a")]
layer = Norm(4), torch.nn.LSTM(4, 4), torch.jit.script(torch.nn.Linear(4, 1))
torch.cuda.nvtx.range_pop()
"""
SEVERAL_AT_ONCE = """
import deepspeed
import torch
from mmengine.runner import FlexibleRunner, Runner

x, y = torch.ones(4).cuda(), torch.ones(4).cuda()
x, y = x.pin_memory(), torch.nn.functional.selu(x.half()).to(torch.float16)
"""
LATER = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(range(8)):
    loss = model(x.cuda()).sum()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(loss.item(), x.nonzero())
        torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(("text", "codes"), [(NAMED, 5), (SEVERAL_AT_ONCE, 4), (LATER, 6)])
def test_no_text_decides_which_findings_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, codes: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)

    def found() -> list[tuple[int, int, str, Severity, Fix]]:
        return [(one.line, one.column, one.code, one.severity, one.fix) for one in checked(script)]

    before, numbers = found(), itertools.count()
    assert len({code for _, _, code, _, _ in before}) >= codes
    monkeypatch.setattr(CatalogueEntry, "says", lambda *_: f"text {next(numbers)}")
    assert found() == before
    # No two findings say the same now, not even one that is found again.
    monkeypatch.setattr(Message, "of", lambda _: Message(f"text {next(numbers)}"))
    assert found() == before
