"""Options that a command does not have: the script's go after `--`, mistyped ones get a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands

SCRIPT = 'import argparse\n\nargparse.ArgumentParser().add_argument("--batch-size")\n'


def line_of(words: str) -> str:
    done = CliRunner().invoke(commands, words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text(SCRIPT)


@pytest.mark.parametrize(
    ("words", "corrected"),
    [
        ("run x.py --epochs 2", "run x.py -- --epochs 2"),
        ("run x.py --epochs=2", "run x.py -- --epochs=2"),
        ("run x.py --verbose", "run x.py -- --verbose"),
        ("run x.py -e 2", "run x.py -- -e 2"),
        ("run x.py train --lr 0.1", "run x.py -- train --lr 0.1"),
        ("run --epochs 2 x.py", "run x.py -- --epochs 2"),
        ("run --verbose x.py", "run x.py -- --verbose"),
        ("run x.py --epochs 2 -- --lr 1", "run x.py -- --epochs 2 --lr 1"),
        ("run x.py --replicas 4 --epochs 2 --json", "run x.py --replicas 4 --json -- --epochs 2"),
        ("run gone.py --epochs 2", "run gone.py -- --epochs 2"),
        ("run --epochs 2", "run SCRIPT -- --epochs 2"),
        ("--debug run x.py --epochs 2", "run x.py -- --epochs 2"),
        ("prove x.py --steps 3 --epochs 2", "prove x.py --steps 3 -- --epochs 2"),
        ("fit x.py --tpu v5e-8 --epochs 2", "fit x.py --tpu v5e-8 -- --epochs 2"),
        ("fit x.py --batch-size 8", "fit x.py -- --batch-size 8"),  # near --batch, in the script
        ("port --from-script x.py -o out --lr 2", "port --from-script x.py -o out -- --lr 2"),
        ("port --from-script=x.py -o out --lr 2", "port --from-script=x.py -o out -- --lr 2"),
        (
            "port net.py:Net --from-script x.py -o out --batch-size 2",
            "port net.py:Net --from-script x.py -o out -- --batch-size 2",
        ),
        ("assess . --script x.py --lr 2", "assess . --script x.py -- --lr 2"),
        ("assess . --script=x.py --batch-size 2", "assess . --script=x.py -- --batch-size 2"),
    ],
)
def test_arguments_of_the_script(words: str, corrected: str) -> None:
    assert line_of(words) == f"migrate: arguments of the script go after --: migrate {corrected}"


def test_each_input_has_an_option_of_its_own() -> None:
    line = line_of("port net.py:Net -o out --inputs x=float32[2,3] ids=int64[2]<9")
    assert line == "migrate: each input has an --inputs of its own: --inputs 'ids=int64[2]<9'"


@pytest.mark.parametrize(
    ("words", "own", "corrected"),
    [
        ("prove x.py --torchrun --lr 2", "prove", "prove x.py -- --torchrun --lr 2"),
        ("run x.py --against other", "run", "run x.py -- --against other"),
    ],
)
def test_an_option_of_another_command(words: str, own: str, corrected: str) -> None:
    line = line_of(words)
    assert f"not of `migrate {own}`" in line
    assert line.endswith(f"migrate {corrected}")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run x.py --replica 2", "--replicas"),
        ("run x.py --repl 2", "--replicas"),
        ("run x.py --timout 2", "--timeout"),
        ("prove x.py --stps 2", "--steps"),
        ("fit x.py --tup v5e-8", "--tpu"),
        ("assess . --script x.py --gpu-step-second 2", "--gpu-step-seconds"),
        ("rewrite x.py --dif", "--diff"),
    ],
)
def test_mistyped_options(words: str, meant: str) -> None:
    line = line_of(words)
    assert "No such option" in line
    assert f"'{meant}'" in line
    assert "script go after" not in line


@pytest.mark.parametrize(
    "words",
    [
        "rewrite x.py --epochs 2",
        "check x.py --epochs 2",
        "fit net.py:Net --epochs 2",
        "port n.py:N -o x --epochs 2",
    ],
)
def test_commands_that_run_no_script(words: str) -> None:
    assert "No such option '--epochs'" in line_of(words)


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_debug_after_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def invoke(context: object) -> None:
        seen.append(context.find_root().obj)  # type: ignore[attr-defined]

    command = commands.commands[name]
    for parameter in command.params:
        monkeypatch.setattr(parameter, "required", False)
    monkeypatch.setattr(command, "invoke", invoke)
    for words in ([name, "--debug"], ["--debug", name], [name]):
        assert CliRunner().invoke(commands, words).exit_code == 0
    assert seen == [True, True, False]


@pytest.mark.parametrize("name", ["rewrite", "check", "run", "prove"])
def test_debug_after_the_command_shows_the_traceback(name: str) -> None:
    done = CliRunner().invoke(commands, [name, "gone.py", "--debug"])
    assert not isinstance(done.exception, SystemExit)
    assert "gone.py" in str(done.exception)


def test_debug_of_the_script_is_the_scripts() -> None:
    done = CliRunner().invoke(commands, ["run", "gone.py", "--", "--debug"])
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
