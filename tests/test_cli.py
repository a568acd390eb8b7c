"""The commands as a user meets them: what they print, where, and how they end."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[1]
TOY = ROOT / "examples" / "ddp_toy"
CUDA = "import torch\nx = torch.zeros(3).cuda()\n"
XLA = CUDA.replace(".cuda()", '.to("xla")').replace("torch\n", "torch\nimport torch_xla\n\n", 1)
PLAIN = "import torch\nx = torch.zeros(3)\n"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(CUDA)
    return path


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "migrate", "--version"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert done.stdout.startswith("tpu-migrate")


class TestFrame:
    def test_help_imports_no_framework(self) -> None:
        code = (
            "import sys; from migrate.cli import commands\n"
            "try: commands(['--help'])\n"
            "except SystemExit: pass\n"
            "print(sorted({'torch', 'jax', 'libcst', 'numpy', 'rich'} & set(sys.modules)))"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines()[-1] == "[]"

    def test_a_rewrite_loads_no_library_that_it_does_not_need(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text("import torch\n\ntorch.ones(2).cuda()\n")
        code = (
            "import sys; from migrate.cli import commands\n"
            "try: commands(sys.argv[1:])\n"
            "except SystemExit: pass\n"
            "print(sorted({'torch', 'jax', 'numpy', 'libcst.matchers'} & set(sys.modules)))"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code, "rewrite", str(script), "--diff"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.splitlines()[-1] == "[]"

    @pytest.mark.parametrize("command", ["", *sorted(commands.commands)])
    def test_every_help_has_an_example(self, command: str) -> None:
        shown = run(*command.split(), "--help")
        assert shown.exit_code == 0
        assert "Example: migrate" in shown.stdout

    def test_version_names_the_frameworks(self) -> None:
        lines = run("--version").stdout.splitlines()
        names = [line.split()[0] for line in lines]
        assert names == ["tpu-migrate", "torch", "torch_xla", "jax", "flax", "libtpu"]
        assert all(len(line.split()) == 2 for line in lines)

    def test_debug_shows_the_traceback(self) -> None:
        quiet = run("rewrite", "missing.py")
        assert (quiet.exit_code, type(quiet.exception)) == (2, SystemExit)
        assert (
            type(run("--debug", "rewrite", "missing.py").exception).__name__
            == "UnreadableScriptError"
        )


class TestRewrite:
    def test_writes_beside_and_says_what_it_did(self, script: Path) -> None:
        done = run("rewrite", script)
        assert done.exit_code == 0
        assert script.read_text() == CUDA
        assert (script.parent / "train_xla.py").read_text() == XLA
        assert "train_xla.py" in done.stdout
        assert ".cuda() → .to('xla')" in done.stdout

    def test_diff_prints_a_patch_and_writes_nothing(self, script: Path) -> None:
        done = run("rewrite", script, "--diff")
        assert done.exit_code == 0
        assert done.stdout.startswith(f"--- {script}\n+++ ")
        assert "edits" not in done.stdout
        assert [path.name for path in script.parent.iterdir()] == ["train.py"]
        patched = subprocess.run(
            ["patch", "-o", "-", str(script)],
            input=done.stdout,
            capture_output=True,
            text=True,
            check=True,
        )
        assert patched.stdout == XLA

    def test_check(self, script: Path) -> None:
        assert run("rewrite", script, "--check").exit_code == 1
        assert [path.name for path in script.parent.iterdir()] == ["train.py"]
        script.write_text(PLAIN)
        assert run("rewrite", script, "--check").exit_code == 0

    def test_nothing_to_migrate(self, script: Path) -> None:
        script.write_text(PLAIN)
        done = run("rewrite", script)
        assert (done.exit_code, done.stdout) == (0, f"{script}: nothing to migrate\n")
        assert script.read_text() == PLAIN
        assert [path.name for path in script.parent.iterdir()] == ["train.py"]

    def test_twice_in_place_gives_the_same(self, script: Path) -> None:
        assert run("rewrite", script, "--in-place").exit_code == 0
        once = script.read_bytes()
        again = run("rewrite", script, "--in-place")
        assert again.exit_code == 0
        assert "nothing to migrate" in again.stdout
        assert script.read_bytes() == once

    def test_what_is_left_by_hand_is_exit_code_1(self, script: Path) -> None:
        script.write_text("import torch\nprint(torch.cuda.mem_get_info())\n")
        done = run("rewrite", script)
        assert done.exit_code == 1
        assert f"{script}:2:7" in done.stdout

    def test_json(self, script: Path) -> None:
        done = run("rewrite", script, "--json")
        (result,) = json.loads(done.stdout)
        assert result["changed"]
        assert result["edits"][0]["rule"] == "device"
        assert result["edits"][0]["line"] == 2
        assert Path(result["written"]).read_text() == XLA

    def test_one_bad_script_and_nothing_is_written(self, script: Path) -> None:
        bad = script.with_name("bad.py")
        bad.write_text("x = (\n")
        done = run("rewrite", script, bad)
        assert done.exit_code == 2
        assert done.stderr == f"migrate: {bad}:1:5: '(' was never closed; fix this line first\n"
        assert sorted(path.name for path in script.parent.iterdir()) == ["bad.py", "train.py"]

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("missing.py", None),
            (".", None),
            ("latin.py", b'x = "\xe9"\n'),
            ("old.py", b"print 1\n"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(
        self, tmp_path: Path, name: str, content: bytes | None
    ) -> None:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        before = sorted(tmp_path.iterdir())
        done = run("rewrite", path)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"migrate: {path}")
        assert sorted(tmp_path.iterdir()) == before

    def test_a_read_only_script_in_place(self, script: Path) -> None:
        script.chmod(0o444)
        done = run("rewrite", script, "--in-place")
        assert done.exit_code == 2
        assert "is read-only" in done.stderr
        assert script.read_text() == CUDA

    @pytest.mark.parametrize("flags", [("--diff", "--in-place"), ("-o", "x.py", "--in-place")])
    def test_flags_that_exclude_one_another(self, script: Path, flags: tuple[str, ...]) -> None:
        assert run("rewrite", script, *flags).exit_code == 2


class TestToy:
    def test_the_example_is_what_the_tool_writes(self, tmp_path: Path) -> None:
        written = tmp_path / "after.py"
        done = run("rewrite", TOY / "before.py", "-o", written)
        assert done.exit_code == 0
        assert written.read_text() == (TOY / "after.py").read_text()

    def test_twice_gives_the_same_and_comments_survive(self, tmp_path: Path) -> None:
        shutil.copy(TOY / "after.py", tmp_path / "script.py")
        assert run("rewrite", tmp_path / "script.py", "--check").exit_code == 0
        before, after = (TOY / "before.py").read_text(), (TOY / "after.py").read_text()
        comments = [line.partition("#")[2] for line in before.splitlines() if "#" in line]
        assert len(comments) >= 4
        assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == comments


class TestWeights:
    def test_a_checkpoint_that_is_not_there(self, tmp_path: Path) -> None:
        done = run("weights", tmp_path / "missing.pt")
        assert done.exit_code == 2
        assert done.stdout == ""
        assert len([line for line in done.stderr.splitlines() if line.startswith("migrate: ")]) == 1

    def test_every_key_is_listed_once(self, tmp_path: Path) -> None:
        import torch

        net = tmp_path / "net.py"
        net.write_text(
            "import torch\n\n\n"
            "def make():\n"
            "    return torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))\n"
        )
        torch.manual_seed(0)
        layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
        torch.save(layers.state_dict(), tmp_path / "net.pt")
        out = tmp_path / "net.flax.safetensors"
        arguments = ("weights", tmp_path / "net.pt", "--model", f"{net}:make", "-o", out)
        done = run(*arguments)
        assert done.exit_code == 0, done.stderr
        assert "{0..3}.weight" in done.stdout
        assert "mapped (4)" in done.stdout
        assert "8 keys: 8 mapped" in done.stdout
        assert run(*arguments).exit_code == 2  # never overwritten unless asked
        listed = json.loads(run(*arguments, "--force", "--json").stdout)
        assert [row["key"] for row in listed["keys"]] == list(layers.state_dict())

    def test_refused_keys_are_all_shown(self, tmp_path: Path) -> None:
        import torch

        net = tmp_path / "net.py"
        net.write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(3, 4)\n")
        extra = {f"other_{n}": torch.zeros(2) for n in range(7)}
        torch.save({**torch.nn.Linear(3, 4).state_dict(), **extra}, tmp_path / "net.pt")
        out = tmp_path / "net.flax.safetensors"
        done = run("weights", tmp_path / "net.pt", "--model", f"{net}:make", "-o", out)
        assert done.exit_code == 2
        assert all(f"other_{n}" in done.stderr for n in range(7))
        assert not out.exists()

    def test_a_training_run_there_and_back_without_its_model(self, tmp_path: Path) -> None:
        import torch

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(2):
            net(torch.randn(4, 5)).square().mean().backward()
            optimizer.step()
        weights = {f"module.{key}": value for key, value in net.state_dict().items()}
        before = {"model": weights, "optimizer": optimizer.state_dict()}
        training, pytree, back = (
            tmp_path / name for name in ("run.pt", "net.safetensors", "net.pt")
        )
        torch.save(before, training)
        seen = run("weights", training, "--dry-run", "--json")
        assert seen.exit_code == 0, seen.stderr
        evidence = " ".join(row["evidence"] for row in json.loads(seen.stdout)["keys"])
        assert "the bias is as long as the weight's first axis" in evidence
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt"]
        there = ("weights", training, "-o", pytree, "--optimizer", training)
        done = run(*there, "--save-mapping", tmp_path / "mapping.yaml", "--checksums")
        assert done.exit_code == 0, done.stderr
        assert "optax.adamw(0.01, b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.1)" in done.stdout
        state = tmp_path / "net.opt.safetensors"
        returned = run("weights", pytree, "--to", "torch", "-o", back, "--optimizer", state)
        assert returned.exit_code == 0, returned.stderr
        after = torch.load(back)
        assert list(after) == list(weights)
        assert all(torch.equal(after[key], value) for key, value in weights.items())
        after = torch.load(tmp_path / "net.opt.pt")
        assert after["param_groups"] == before["optimizer"]["param_groups"]
        for position, moments in before["optimizer"]["state"].items():
            for name, value in moments.items():
                assert torch.equal(after["state"][position][name], value)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--to", "torch", "--key", "model"), "--key applies to torch checkpoints"),
            (("--to", "torch", "--scan"), "--scan applies to torch checkpoints"),
            (("--to", "torch", "--format", "msgpack"), "--to torch writes safetensors or pt"),
            (("--format", "pt"), "--format pt needs --to torch"),
            (("--example", "3,a"), "--example takes numbers: --example 1,3,64,48"),
        ],
    )
    def test_options_of_the_other_direction(
        self, arguments: tuple[str, ...], said: str, tmp_path: Path
    ) -> None:
        (tmp_path / "net.pt").write_bytes(b"")
        done = run("weights", tmp_path / "net.pt", *arguments)
        assert done.exit_code == 2
        assert f"migrate: {said}" in done.stderr


class TestRun:
    def test_the_exit_code_and_what_goes_where(self, tmp_path: Path) -> None:
        path = tmp_path / "script.py"
        path.write_text("import sys\nprint('from the script', sys.argv[1:])\nsys.exit(3)\n")
        migrate = Path(sys.executable).with_name("migrate")
        command = [migrate, "run", path, "--json", "--", "--lr", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "from the script ['--lr', '1']" in done.stderr
        assert json.loads(done.stdout)["returncode"] == 3

    def test_a_script_that_is_missing(self, tmp_path: Path) -> None:
        done = run("run", tmp_path / "missing.py")
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1


class TestProve:
    @pytest.mark.long
    def test_equal_and_different_with_the_rewrite_made_on_the_fly(self, tmp_path: Path) -> None:
        shutil.copy(TOY / "before.py", tmp_path / "train.py")
        done = run("prove", tmp_path / "train.py", "--replicas", "2")
        assert done.exit_code == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("match: 48 steps on each of 2 ranks")
        assert [path.name for path in tmp_path.iterdir()] == ["train.py"]

        broken = tmp_path / "broken.py"
        after = (TOY / "after.py").read_text()
        broken.write_text(after.replace("DDP(model, gradient_as_bucket_view=True)", "model"))
        arguments = ("prove", tmp_path / "train.py", "--rewritten", broken, "--json")
        done = run(*arguments)
        assert done.exit_code == 1
        proof = json.loads(done.stdout)
        assert not proof["equal"]
        assert (proof["verdict"], proof["difference"]["step"]) == ("differs", 1)
        assert "is DDP missing?" in proof["message"]

    def test_what_is_left_by_hand_is_said_first(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text(
            "import torch\n\nprint(torch.cuda.mem_get_info())\nraise ValueError('no data')\n"
        )
        done = run("prove", path)
        assert done.exit_code == 2
        assert "train.py: 1 left to do by hand" in done.stderr
        assert f"{path}:3:7" in done.stderr.replace("\n", "")

    @pytest.mark.long
    def test_an_original_that_does_not_run(self, tmp_path: Path) -> None:
        path = tmp_path / "train.py"
        path.write_text("import torch\n\nraise ValueError('no data here')\n")
        done = run("prove", path)
        assert done.exit_code == 2
        lines = done.stderr.splitlines()
        (line,) = [line for line in lines if line.startswith("migrate: ")]
        assert "fails on the CPU as it is, without the rewrite: ValueError: no data here" in line
        assert any("Traceback" in line for line in lines)


def test_a_whole_module_says_what_it_is_and_what_the_run_was_told(tmp_path: Path) -> None:
    """Nothing of it is built: neither `--model` nor its class is needed."""
    torch = pytest.importorskip("torch")
    saved = {
        "model": torch.nn.Sequential(torch.nn.Linear(3, 4)),
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(saved, tmp_path / "x.pt")
    seen = run("weights", tmp_path / "x.pt", "--dry-run", "--json")
    assert seen.exit_code == 0, seen.stderr
    values = json.loads(seen.stdout)
    assert values["options"] == {"args": {"lr": 0.1}}
    assert "also holds argparse.Namespace: not built, not needed" in values["notes"]
    evidence = {row["evidence"] for row in values["keys"]}
    assert evidence == {"certain: torch.nn.modules.linear.Linear in the file"}
    out = tmp_path / "x.flax.safetensors"
    done = run("weights", tmp_path / "x.pt", "-o", out, "--json")
    assert json.loads(done.stdout)["options"] == {"args": {"lr": 0.1}}
    assert out.exists()


def test_a_defect_of_the_program_is_one_line_too(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("migrate.rewrite.file.rewrite_file", fail)
    done = run("rewrite", script)
    assert done.exit_code == 2
    assert done.stderr.startswith("migrate: internal error (ZeroDivisionError: division by zero)")
    assert isinstance(run("--debug", "rewrite", script).exception, ZeroDivisionError)
