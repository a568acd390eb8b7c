"""A whole folder: what changes, what is copied, what is refused, and what the report says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.report.text.folder import folder_as_json, folder_summary
from migrate.rewrite import folder as folder_module
from migrate.rewrite import pipeline
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left import after as after_module
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.own_shims import OwnShimsError
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.write import NotWritableError, WouldOverwriteError, rewrite_into, write_folder
from migrate.syntax.source import NotPythonError, Source, parse

MAIN = """\
import torch
from lib.steps import turn


def main(model, loader, optimizer):
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        turn(model, x, y, optimizer)


if __name__ == '__main__':
    main(None, [], None)
"""
STEPS = """\
import torch.distributed as dist


def turn(model, x, y, optimizer):
    optimizer.zero_grad()
    (model(x) - y).sum().backward()
    optimizer.step()
    dist.new_group([0])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, data in {
        "main.py": MAIN.encode(),
        "lib/__init__.py": b"",
        "lib/steps.py": STEPS.encode(),
        "lib/words.py": b"# caf\xc3\xa9\r\nx = 1   \r\n",
        "lib/old.py": b"import torch\nprint 'x'\n",
        "data/table.bin": bytes(range(256)),
        "try.ipynb": b'{"cells": []}',
        ".git/config": b"[core]\n",
        "lib/__pycache__/steps.pyc": b"x",
        "env/pyvenv.cfg": b"",
        "env/lib/torch.py": b"import torch\ntorch.cuda.empty_cache()\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "link.py").symlink_to("main.py")
    (folder / "main.py").chmod(0o755)
    return folder


def run(*args: object) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_only_what_needs_it_changes(project: Path, tmp_path: Path) -> None:
    before = contents(project)
    done = rewrite_folder(project, processes=1)
    write_folder(done, tmp_path / "out")
    after = contents(tmp_path / "out")
    kept = {name for name in before if not name.startswith((".git", "env", "lib/__pycache__"))}
    assert set(after) == kept
    changed = {name for name in kept if after[name] != before[name]}
    assert changed == {"main.py", "link.py"}
    assert b'.to("xla")' in after["main.py"] or b".to('xla')" in after["main.py"]
    assert (tmp_path / "out" / "link.py").is_symlink()
    assert os.access(tmp_path / "out" / "main.py", os.X_OK)
    assert contents(project) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_step_is_found_through_another_file(project: Path) -> None:
    done = rewrite_folder(project, processes=1)
    (main,) = [file for file in done.files if file.name == Path("main.py")]
    spoken = {note.rule for note in (*main.edits, *main.findings)}
    assert "step" in spoken


def test_a_file_that_does_not_parse_is_named_and_copied(project: Path) -> None:
    done = rewrite_folder(project, processes=1)
    (broken,) = done.problems
    assert broken.name == Path("lib/old.py")
    assert "old.py:2" in broken.problem
    assert not broken.changed


def test_one_process_and_several_give_the_same(project: Path) -> None:
    one, two = rewrite_folder(project, processes=1), rewrite_folder(project, processes=2)
    assert one == two


def test_a_script_that_does_its_work_at_once_is_not_run_again(
    project: Path, tmp_path: Path
) -> None:
    """Each process ran it from the start, as those that install a command without a guard had to see."""
    script = tmp_path / "start.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from migrate.rewrite.folder import rewrite_folder\n"
        "print('started')\n"
        "done = rewrite_folder(Path(sys.argv[1]), processes=2)\n"
        "print(len(done.changed), __file__ == sys.argv[0])\n"
    )
    done = subprocess.run(
        [sys.executable, script, project], capture_output=True, text=True, check=True
    )
    changed = rewrite_folder(project, processes=1).changed
    assert done.stdout == f"started\n{len(changed)} True\n"


def test_the_second_run_changes_nothing(project: Path, tmp_path: Path) -> None:
    write_folder(rewrite_folder(project, processes=1), tmp_path / "out")
    assert rewrite_folder(tmp_path / "out", processes=1).changed == ()


def test_a_module_comes_before_those_that_import_it(project: Path) -> None:
    (project / "zz.py").write_text("import torch.distributed as d\nd.new_group([0])\n")
    (project / "lib/steps.py").write_text("import zz\n" + STEPS)
    names = [
        str(name)
        for name, note in rewrite_folder(project, processes=1).left_to_do
        if "new_group" in note.message
    ]
    assert list(dict.fromkeys(names)) == ["zz.py", "lib/steps.py"]


class TestRefused:
    def test_a_folder_with_content(self, project: Path, tmp_path: Path) -> None:
        done = rewrite_folder(project, processes=1)
        out = tmp_path / "out"
        out.mkdir()
        write_folder(done, out)
        (out / "mine.txt").write_text("x")
        with pytest.raises(WouldOverwriteError):
            write_folder(done, out)
        assert (out / "mine.txt").exists()
        write_folder(done, out, force=True)
        assert not (out / "mine.txt").exists()

    @pytest.mark.parametrize("name", ["project/out", "project", ".", "no/out"])
    def test_a_folder_inside_or_around(self, project: Path, tmp_path: Path, name: str) -> None:
        done = rewrite_folder(project, processes=1)
        before = contents(tmp_path)
        with pytest.raises(NotWritableError):
            write_folder(done, tmp_path / name, force=True)
        assert contents(tmp_path) == before

    def test_a_full_disk_leaves_what_was_there(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done = rewrite_folder(project, processes=1)
        out = tmp_path / "out"
        write_folder(done, out)
        before = contents(out)

        def full(source: object, target: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("shutil.copy2", full)
        with pytest.raises(NotWritableError, match="no space left"):
            write_folder(done, out, force=True)
        assert contents(out) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "project"]


def test_what_is_only_to_be_looked_at_comes_last(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n\n\n"
        "def loader(data, args):\n"
        "    return DataLoader(data, pin_memory=args.pin_memory)\n\n\n"
        "def keep(net, file):\n    torch.save(net.cuda().state_dict(), open(file, 'wb'))\n"
    )
    notes = [note for _, note in rewrite_folder(tmp_path).outside_tests]
    assert [note.severity.value for note in notes] == ["error", "info"]
    assert notes[0].line > notes[1].line


class TestCommand:
    def test_report(self, project: Path, tmp_path: Path) -> None:
        done = run("rewrite", project, "-o", tmp_path / "out")
        assert done.exit_code == 1
        assert "1 rewritten" in done.stdout
        assert "left to do by hand" in done.stdout
        assert "could not be rewritten" in done.stdout
        assert (tmp_path / "out" / "main.py").exists()

    def test_json(self, project: Path, tmp_path: Path) -> None:
        done = run("rewrite", project, "-o", tmp_path / "out", "--json")
        report = json.loads(done.stdout)
        assert report["notebooks"] == ["try.ipynb"]
        assert {file["path"] for file in report["files"]} == {"main.py", "lib/old.py"}
        assert report["left_to_do"]
        assert report["edits_by_rule"]["device"] >= 2

    def test_diff_and_check_write_nothing(self, project: Path) -> None:
        before = contents(project)
        done = run("rewrite", project, "--diff")
        assert done.stdout.startswith("--- a/main.py\n+++ b/main.py\n")
        assert run("rewrite", project, "--check").exit_code == 1
        assert contents(project) == before

    def test_in_place(self, project: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        assert run("rewrite", project, "-o", other).exit_code == 1
        mode = (project / "main.py").stat().st_mode
        done = run("rewrite", project, "--in-place")
        assert done.exit_code == 1
        assert "→" not in done.stdout.splitlines()[0]
        written = contents(project)
        assert contents(other).items() <= written.items()
        assert (project / "main.py").stat().st_mode == mode
        assert run("rewrite", project, "--in-place").exit_code == 1
        assert contents(project) == written

    def test_a_read_only_file_keeps_all_as_they_are(self, project: Path) -> None:
        (project / "main.py").chmod(0o444)
        before = contents(project)
        done = run("rewrite", project, "--in-place")
        assert done.exit_code == 2
        assert "main.py: is read-only" in done.stderr
        assert contents(project) == before

    @pytest.mark.parametrize("flags", [[], ["-o", "."], ["--diff", "--check"]])
    def test_a_folder_needs_another_one(self, project: Path, flags: list[str]) -> None:
        before = contents(project)
        done = run("rewrite", project, *flags)
        assert done.exit_code == 2
        assert contents(project) == before


def test_a_rank_that_the_launcher_of_the_script_sets_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "join.py").write_text(
        "import os\n\n\ndef init_distributed_mode(args):\n"
        '    args.rank = int(os.environ["RANK"])\n    args.cuda = "cuda"\n'
    )
    train = (
        "import join\nimport torch\n\n\ndef main(args):\n    join.init_distributed_mode(args)\n"
        '    torch.nn.parallel.DistributedDataParallel(args.model)\n\n\nif __name__ == "__main__":\n'
        "    main(None)\n"
    )
    (tmp_path / "train.py").write_text(train)
    assert not [note for _, note in rewrite_folder(tmp_path).left_to_do if "RANK" in note.message]
    # A script that asks, too, and has no launcher.
    (tmp_path / "probe.py").write_text(
        'import join\n\nif __name__ == "__main__":\n    print(join.init_distributed_mode.__name__)\n'
    )
    assert not [note for _, note in rewrite_folder(tmp_path).left_to_do if "RANK" in note.message]
    (tmp_path / "serve.py").write_text(
        "import join\nimport torch\nimport torch.multiprocessing as mp\n\n\ndef worker(rank):\n    pass\n\n\n"
        'if __name__ == "__main__":\n    join.init_distributed_mode(torch.ones(1))\n'
        "    mp.spawn(worker, nprocs=2)\n"
    )
    assert [note for _, note in rewrite_folder(tmp_path).left_to_do if "RANK" in note.message]


class TestTurns:
    def test_a_file_is_read_once_for_a_turn(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsed: Counter[str] = Counter()

        def counted(data: bytes, path: Path) -> Source:
            parsed[path.name] += 1
            return parse(data, path)

        for module in (folder_module, pipeline, after_module):
            monkeypatch.setattr(module, "parse", counted)
        (project / "lib/steps.py").write_text(STEPS.replace("dist.new_group([0])", "print(x)"))
        done = rewrite_folder(project, processes=1)
        # main.py changes, so it is read once more; what its step runs in steps.py is not read again.
        assert [str(file.name) for file in done.changed] == ["main.py"]
        assert parsed["main.py"] == 2
        assert parsed["steps.py"] == 1

    @pytest.mark.parametrize("processes", [1, 2])
    @pytest.mark.long_cases("2")
    def test_progress_tells_the_files(self, project: Path, processes: int) -> None:
        told: list[tuple[str, int, int]] = []

        def tell(what: str, done: int = 0, total: int = 0) -> None:
            told.append((what, done, total))

        rewrite_folder(project, processes=processes, progress=tell)
        rewriting = [(done, total) for what, done, total in told if what == "rewriting"]
        assert rewriting == [(done, len(rewriting) - 1) for done in range(len(rewriting))]
        assert len(rewriting) > 2

    def test_what_is_left_to_do_has_one_order(self, project: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from migrate.rewrite.folder import rewrite_folder; "
            "print(rewrite_folder(Path(sys.argv[1]), processes=1).left_to_do)"
        )
        for number in range(6):  # as many as a set of paths needs to show
            (project / f"m{number}.py").write_text(
                "import torch.distributed as d\nd.new_group([0])\n"
            )
        (project / "aa.py").write_text("".join(f"import m{number}\n" for number in range(6)))
        printed = {
            subprocess.run(
                [sys.executable, "-c", code, str(project)],
                env=os.environ | {"PYTHONHASHSEED": str(seed)},
                capture_output=True,
                check=True,
            ).stdout
            for seed in (1, 2)
        }
        assert len(printed) == 1


def test_a_file_of_another_framework_stays_as_it_is(tmp_path: Path) -> None:
    paddle = "import paddle\n\n\ndef gather(inputs):\n    return inputs.cuda(0)\n"
    (tmp_path / "metrics.py").write_text(paddle)
    (tmp_path / "train.py").write_text(paddle.replace("paddle", "torch"))
    done = rewrite_folder(tmp_path, processes=1)
    assert [file.name.name for file in done.files if file.changed] == ["train.py"]


def test_a_file_for_a_newer_python_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    """libcst reads it, and what its calls run is not known: its loop was left without a step, silently."""
    script = (
        "import torch\n\n\ndef main(model, loader, optimizer, args):\n"
        '    print(f"to {str(args["dir"])}")\n    model.cuda()\n    for x in loader:\n'
        "        loss = model(x.cuda()).mean()\n        loss.backward()\n        optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(script)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    if sys.version_info >= (3, 12):
        assert b"with torch_xla.step():" in file.after
        return
    assert not file.changed
    assert file.problem is not None
    assert "train.py:5:" in file.problem
    assert "newer Python than Python 3.11" in file.problem
    with pytest.raises(NotPythonError):
        rewrite(tmp_path / "train.py")


UNREAD = 'def place(args):\n    print "to", args\n    return args.place\n'
READS = """\
import torch
from helper import place


def main(model, loader, optimizer, args):
    model.to(place(args))
    for x in loader:
        loss = model(x.to(place(args))).mean()
        loss.backward()
        optimizer.step()
"""


def test_an_imported_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """What it returns is not known; it names nothing of torch, so that nobody looked at it."""
    (tmp_path / "helper.py").write_text(UNREAD)
    (tmp_path / "train.py").write_text(READS)
    (tmp_path / "template.py").write_text(UNREAD)  # imported by nobody
    why = f"{tmp_path / 'helper.py'}:2:"
    done = rewrite_folder(tmp_path, processes=1)
    assert done.scripts == 3
    assert [file.problem.startswith(why) for file in done.problems] == [True]
    (unread,) = rewrite(tmp_path / "train.py").unread
    assert unread.startswith(why)
    told = CliRunner().invoke(commands, ["rewrite", str(tmp_path / "train.py"), "--check"])
    assert why in told.stdout
    assert told.exit_code == 1
    checked = CliRunner().invoke(commands, ["check", str(tmp_path / "train.py")])
    assert f"{why}5: XLA000" in checked.stdout
    assert checked.exit_code == 1


class TestOwnShims:
    """A project with a `shims.py` of its own."""

    SCRIPT = """
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from shims import resize


        def main(rank):
            dist.init_process_group("nccl")
            model = torch.nn.Linear(2, 2).cuda(rank)
            LINE
            model = DistributedDataParallel(model, device_ids=[rank])
            print(resize(model))
    """
    SYNC = "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"

    def project(self, tmp_path: Path, line: str) -> Path:
        """Return the folder of a project with a module `shims`."""
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "shims.py").write_text("def resize(x): return x\n")
        script = textwrap.dedent(self.SCRIPT).lstrip().replace("LINE", line)
        (folder / "train.py").write_text(script)
        return folder

    def test_the_native_style_is_written_where_it_needs_no_shims(self, tmp_path: Path) -> None:
        folder = self.project(tmp_path, "model.train()")
        [file] = rewrite_folder(folder, processes=1).changed
        assert b"import shims" not in file.after
        assert rewrite_file(folder / "train.py").changed

    @pytest.mark.parametrize("style", ["native", "portable"])
    @pytest.mark.parametrize("line", [SYNC, "model.train()"])
    def test_nothing_is_written_where_the_library_is_needed(
        self, tmp_path: Path, style: str, line: str
    ) -> None:
        if (style, line) == ("native", "model.train()"):
            return
        folder, options = self.project(tmp_path, line), RewriteOptions(style=style)
        with pytest.raises(OwnShimsError, match=r"shims\.py.*rename the module"):
            rewrite_into(folder, tmp_path / "out", options=options)
        assert not (tmp_path / "out").exists()
        with pytest.raises(OwnShimsError, match=r"shims\.py"):
            rewrite_file(folder / "train.py", options)

    def test_a_module_of_a_package_is_not_in_the_way(self, tmp_path: Path) -> None:
        package = self.project(tmp_path, self.SYNC)
        (package / "__init__.py").touch()
        script = (package / "train.py").read_text()
        (package / "train.py").write_text(script.replace("from shims", "from .shims"))
        [file] = rewrite_folder(
            package, options=RewriteOptions(style="portable"), processes=1
        ).changed
        assert b"import shims\n" in file.after


@pytest.mark.parametrize("name", ["tests/helpers.py", "test_model.py", "conftest.py"])
def test_findings_in_tests_are_counted_and_set_no_exit_code(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("import torch\n\ntorch.cuda.nvtx.range_push('a')\n")
    (tmp_path / "main.py").write_text("import torch\n\nx = torch.ones(2).cuda()\n")
    done = rewrite_folder(tmp_path, processes=1)
    assert not done.fails()
    assert done.outside_tests == ()
    assert [path for path, _ in done.in_tests] == [Path(name)]
    assert "1 more in 1 test file" in str(list(folder_summary(done, None))[-1])
    assert folder_as_json(done, None)["in_tests"]
    assert not folder_as_json(done, None)["left_to_do"]
    if "/" in name:
        assert rewrite_folder(tmp_path / "tests", processes=1).fails()
