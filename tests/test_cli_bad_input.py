"""Bad input as a user gives it: one line that says what, where and what to do, and the right code."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.rewrite.folder import rewrite_folder
from migrate.syntax.source import NotPythonError, require_python
from tests.waiting import LIMIT, until

MIGRATE = Path(sys.executable).with_name("migrate")
CUDA = "import torch\n\nx = torch.zeros(3).cuda()\n"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


def one_line(done: Result) -> str:
    """The one line that a command ended with that could not do its work."""
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("migrate: ")
    return line


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(CUDA)
    return path


class TestCommandLine:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("rewrite --frobnicate x.py", "'--frobnicate'"),
            ("rewrite", "PATH"),
            ("run x.py --replicas many", "many is not a whole number from 1 to "),
            ("run x.py --replicas 0", "0 is not a whole number from 1 to "),
            ("port net.py:Net --count x", "x is not a whole number from 1;"),
            ("rewrite x.py --style fancy", "fancy"),
            ("rewrite x.py --diff --check", "--diff"),
            ("frobnicate", "frobnicate"),
        ],
    )
    def test_wrong_words_are_one_line(self, words: str, said: str) -> None:
        line = one_line(run(*words.split()))
        assert said in line
        assert line.endswith("--help`")

    def test_what_cannot_be_ported_is_reported_before_torch_is_imported(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "net.py").write_text("from torch import nn\n\n\nclass Net(nn.Linear): ...\n")
        (tmp_path / "open.py").write_text("globals().update(Net=1)\n")
        (tmp_path / "bad.pt").write_bytes(b"")
        code = "import sys\nfrom migrate.cli import commands\ntry:\n    commands()\nfinally:\n"
        code += "    assert 'torch' not in sys.modules"
        for words, said in (
            (("net.py:Nett",), "net.py has no Nett; did you mean Net?"),
            (("nett.py:Net",), "no file nett.py; did you mean net.py?"),
            (("net.py:Net", "--weights", "bad.pt"), "bad.pt is empty"),
            (("open.py:Net", "--weights", "gone.pt"), "--weights gone.pt: no such file"),
        ):
            done = subprocess.run(
                [sys.executable, "-c", code, "port", *words, "-o", "out"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 2, done.stderr
            assert done.stderr.startswith(f"migrate: {said}")

    def test_no_words_are_the_help(self) -> None:
        done = run()
        assert done.exit_code == 2
        assert "Example: migrate" in done.stderr

    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "kill"]
    )
    @pytest.mark.long_cases("kill")
    def test_an_interrupted_command_ends_with_the_signals_code(
        self, tmp_path: Path, number: signal.Signals, code: int
    ) -> None:
        started = tmp_path / "started"
        path = tmp_path / "slow.py"
        path.write_text(
            f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(600)\n"
        )
        command = [MIGRATE, "run", "--no-report", path]
        # Whoever is started in the background ignores SIGINT, and hands that down; a handler is not.
        before = signal.signal(number, signal.default_int_handler)
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        signal.signal(number, before)
        until(lambda: started.exists() or running.poll() is not None, "its script to begin")
        assert running.poll() is None, "it ended before its script began"
        running.send_signal(number)
        assert running.wait(LIMIT) == code


class TestFiles:
    def test_the_original_is_no_output(self, script: Path) -> None:
        link = script.with_name("link.py")
        link.symlink_to(script)
        for output in (script, link):
            for force in ((), ("--force",)):
                assert "--in-place" in one_line(run("rewrite", script, "-o", output, *force))
        assert script.read_text() == CUDA
        assert run("rewrite", script, "--in-place").exit_code == 0
        assert "xla" in script.read_text()

    def test_a_rewrite_that_is_not_there_is_noticed_at_once(
        self, script: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("migrate.prove.run.process.start", None)  # nothing is run
        missing = script.with_name("nope.py")
        line = one_line(run("prove", script, "--rewritten", missing))
        assert f"{missing} does not exist" in line
        assert "or of the rewritten project's folder" in line

    def test_an_interpreter_that_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("migrate.parity.sides.process.start", None)
        net = tmp_path / "net.py"
        net.write_text("import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n")
        line = one_line(
            run("parity", f"{net}:Net", f"{net}:Net", "--python-b", "/no/python", "--json")
        )
        assert "side B: /no/python is not a program" in line

    def test_too_many_ranks(self, script: Path) -> None:
        command = [sys.executable, "-m", "shims", "--ranks", "9999", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "shims: 9999 replicas requested; 1 to 64\n"

    @pytest.mark.parametrize(
        ("content", "line", "said"),
        [
            (b"one\n\x80", 2, "is not valid utf-8"),
            (b"\x00\x01\x02" * 50, 1, "null bytes"),
            (b"def f(:\n    pass\n", 1, "invalid syntax"),
            (b"print 1\n", 1, "Missing parentheses"),
        ],
    )
    def test_check_does_not_say_that_what_it_cannot_read_is_fine(
        self, tmp_path: Path, content: bytes, line: int, said: str
    ) -> None:
        path = tmp_path / "garbage.py"
        path.write_bytes(content)
        done = run("check", path)
        assert done.exit_code == 1
        assert said in done.stdout
        assert f"{path}:{line}:" in done.stdout
        assert run("check", path, "--ignore", "XLA000").exit_code == 0

    @pytest.mark.parametrize("command", ["run", "prove", "train"])
    @pytest.mark.parametrize("content", [b"not a script\n", b"\x80\x02\x00"])
    def test_a_checkpoint_in_place_of_a_script(
        self, tmp_path: Path, command: str, content: bytes
    ) -> None:
        path = tmp_path / "model.pt"
        path.write_bytes(content)
        output = ("-o", tmp_path / "out") if command == "train" else ()
        assert f"{path}:" in one_line(run(command, path, *output))


class TestRunOfACudaScript:
    SCRIPT = """\
import os
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(__file__, sorted(os.listdir(os.path.dirname(__file__))))
print((torch.ones(3, device=device) * 2).sum().item())
"""

    def test_it_is_a_finding_unless_it_is_rewritten(self, script: Path) -> None:
        script.write_text(self.SCRIPT)
        here = f"{script} ['train.py']"
        for flag, code, executed in (("--report", 1, False), ("--rewrite", 0, True)):
            command = [MIGRATE, "run", script, "--replicas", "1", flag]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == code, done.stderr
            # Its own path either way, and nothing of ours beside it.
            assert done.stdout.splitlines()[:2] == [here, "6.0"]
            assert ("nothing ran on XLA" in done.stdout) is not executed
            assert ("--rewrite rewrites it for the run" in done.stderr) is not executed


class TestDeepNesting:
    PARENTHESES = f"{CUDA}y = {'(' * 3000}1{')' * 3000}\n"
    SUM = f"{CUDA}y = {' + '.join(['x'] * 500)}\n"

    @pytest.mark.parametrize("command", ["rewrite", "check"])
    @pytest.mark.long_cases("check")
    def test_more_parentheses_than_python_takes(self, script: Path, command: str) -> None:
        script.write_text(self.PARENTHESES)
        # In a process of its own: it ended with SIGSEGV.
        ran = subprocess.run(
            [MIGRATE, command, script], capture_output=True, text=True, check=False
        )
        said = f"{script}:4:205: too many nested parentheses"
        if command == "rewrite":
            assert (ran.returncode, ran.stdout) == (2, "")
            assert ran.stderr == f"migrate: {said}; fix this line first\n"
        else:
            assert ran.returncode == 1
            assert ran.stdout.startswith(said.replace(": too", ": XLA000 error too"))

    def test_brackets_in_strings_are_no_nesting(self, script: Path) -> None:
        script.write_text(f'{CUDA}y = "{"(" * 3000}"\n')
        assert run("rewrite", script).exit_code == 0

    def test_a_sum_that_python_compiles(self, script: Path) -> None:
        script.write_text(self.SUM)
        assert "XLA724 error [*]" in run("check", script).stdout  # it was an internal error
        assert run("rewrite", script).exit_code == 0
        rewritten = script.with_name("train_xla.py").read_text()
        assert self.SUM.splitlines()[-1] in rewritten
        assert '.to("xla")' in rewritten
        limit = sys.getrecursionlimit()
        (file,) = [
            one for one in rewrite_folder(script.parent).files if one.name == Path("train.py")
        ]
        assert (file.problem, file.changed) == ("", True)
        assert sys.getrecursionlimit() == limit

    @pytest.mark.long
    def test_a_long_chain_of_elif(self, script: Path) -> None:
        chain = "".join(f"elif y == {k}:\n    y = x.cuda()\n" for k in range(250))
        script.write_text(f"{CUDA}y = 1\nif y == -1:\n    y = 2\n{chain}")
        assert "(251 times in this file" in run("check", script).stdout
        assert run("rewrite", script).exit_code == 0  # it was an internal error (KeyError)
        assert "cuda" not in script.with_name("train_xla.py").read_text()

    def test_what_python_does_not_compile_either(self) -> None:
        nested = "- " * 20_000
        with pytest.raises(NotPythonError, match=r"^train.py: .* nests deeper than Python itself"):
            require_python(f"y = {nested}1\n".encode(), Path("train.py"))
