"""The guide and the page of `migrate launch`: their commands write jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from tests.docs.test_commands import blocks, command_words
from tests.launch.jobs import PROGRAMS, trained_program

ROOT = Path(__file__).parents[2]
PAGES = ("docs/guides/tpu-vm.md", "docs/launch.md")
COMMANDS = [
    words
    for page in PAGES
    for line in blocks((ROOT / page).read_text())
    if (words := command_words(line)) and words[0] == "launch"
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_pages_writes_its_job(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAMS / "xla_script.py", "train_xla.py")
    shutil.copy(PROGRAMS / "tpu_script.py", "train_tpu.py")
    if "jax_program" in words:
        trained_program(tmp_path / "jax_program")
    words = [word.replace("MY_BUCKET", "my-bucket") for word in words]
    if "--python" in words:
        at = words.index("--python")
        words = words[:at] + words[at + 2 :]
    done = CliRunner().invoke(commands, [word for word in words if word != "--check"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / words[words.index("-o") + 1] / "start.sh").is_file()


def test_the_guide_uses_the_command_for_each_kind_of_program() -> None:
    programs = {words[1] for words in COMMANDS}
    assert {"train_xla.py", "train_tpu.py", "jax_program"} <= programs
