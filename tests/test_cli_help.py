"""Help pages in sections, and completion by the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.cli.grouping import EachSideOption, SectionedCommand

MIGRATE = Path(sys.executable).with_name("migrate")
SECTIONED = [
    name for name, command in commands.commands.items() if isinstance(command, SectionedCommand)
]
USUAL = 5


def shown(*words: str, width: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(width)}).invoke(commands, [*words, "--help"])
    assert done.exit_code == 0
    return done.stdout


def test_commands_are_grouped_by_task() -> None:
    groups = {
        heading: re.findall(r"^  (\w+)", body, re.MULTILINE)
        for heading, body in re.findall(r"^(\w[^\n]*):\n((?:  .*\n)+)", shown(), re.MULTILINE)
    }
    assert groups["Move a script"] == ["rewrite", "check", "run", "prove"]
    assert groups["Move a model"] == ["weights", "port", "train", "parity"]
    assert groups["Plan"] == ["fit", "assess"]
    assert groups["Run on a TPU slice"] == ["launch"]
    assert groups["Environment"] == ["doctor", "completion"]
    tasks = [name for names in commands.tasks.values() for name in names]  # type: ignore[attr-defined]
    assert sorted(tasks) == sorted(commands.commands)


def test_long_helps_have_sections() -> None:
    assert {"weights", "parity", "port", "fit", "assess", "prove"} <= set(SECTIONED)


@pytest.mark.parametrize("name", SECTIONED)
def test_every_option_stands_in_the_help_once(name: str) -> None:
    command = commands.commands[name]
    page = shown(name)
    page = page[page.index("Common options:") : page.index("Example: ")]
    assert len(next(iter(command.sections.values()))) == USUAL  # type: ignore[attr-defined]
    assert page.index("Common options:") < page.index("General:")
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            row = option.row if isinstance(option, EachSideOption) else option.opts[-1]
            pattern = rf"^  (?:-\w, )?{re.escape(row)}(?![\w-])"
            assert len(re.findall(pattern, page, re.MULTILINE)) == 1, row


@pytest.mark.parametrize("name", ["", *sorted(commands.commands)])
@pytest.mark.parametrize("width", [80, 200])
def test_no_help_is_wider_than_the_screen(name: str, width: int) -> None:
    assert max(map(len, shown(*name.split(), width=width).splitlines())) <= min(width, 100)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    done = subprocess.run(
        [MIGRATE, "completion", shell], capture_output=True, text=True, check=True
    )
    assert "_MIGRATE_COMPLETE" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("migrate we", ["plain,weights"]),
        ("migrate weights --optimizer-k", ["plain,--optimizer-key", "plain,--optimizer-kind"]),
        ("migrate weights mo", ["file,mo"]),
        ("migrate run tr", ["file,tr"]),
        ("migrate prove x.py --amp ke", ["plain,keep"]),
    ],
)
def test_what_is_completed(words: str, expected: list[str]) -> None:
    environment = os.environ | {
        "_MIGRATE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run([MIGRATE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected
