"""The README: short; its commands, options and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from migrate.cli import commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The guides come with the site of the documentation; from then on each link to one is checked.
LATER = () if (ROOT / "docs" / "guides").exists() else ("docs/start.md", "docs/guides/")


def test_it_is_short_and_its_two_commands_are_on_the_first_screen() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    first = "\n".join(lines[:20])
    assert "make demo" in first
    assert "make test" in first
    assert "Nobody has run it on a TPU" in first


def test_its_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", README)
    missing = [name for name in targets if not (ROOT / name).exists()]
    assert [name for name in missing if not name.startswith(LATER)] == []
    anchors = re.findall(r"\]\(#([^)]+)\)", README)
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in README.splitlines()
        if line.startswith("#")
    }
    assert set(anchors) <= headings


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`?migrate ([a-z]+)", README))))
def test_its_commands_exist(name: str) -> None:
    assert commands.get_command(Context(commands), name) is not None


def test_options_that_it_names_exist() -> None:
    for name, option in re.findall(r"migrate ([a-z]+)[^`\n]*? (--[a-z][a-z-]+)", README):
        command = commands.get_command(Context(commands), name)
        assert command is not None
        names = {text for parameter in command.params for text in parameter.opts}
        assert option in names, f"{name} {option}"


def test_its_first_outputs_are_those_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `check` and `rewrite` print; a line with `…` is compared up to there."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text((ROOT / "examples/ddp_toy/before.py").read_text())
    session = README.partition("## Ten lines")[2].partition("$ migrate prove")[0]
    for part in session.split("$ migrate ")[1:]:
        command, *shown = part.splitlines()
        printed = CliRunner().invoke(commands, command.partition("#")[0].split()).stdout
        for line in filter(None, (line.partition("…")[0] for line in shown)):
            assert line in printed
