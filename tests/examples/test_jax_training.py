"""The example of both roads: the program is what `migrate train` writes now."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "jax_training" / "jax_program"


@pytest.mark.long
def test_the_program_is_what_is_written_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax_training").mkdir()
    shutil.copytree(EXAMPLES / "ddp_toy", tmp_path / "ddp_toy")
    monkeypatch.chdir(tmp_path)
    command = ["train", "ddp_toy/before.py", "-o", "jax_training/jax_program"]
    result = CliRunner().invoke(commands, command)
    assert result.exit_code == 0, result.output
    written = tmp_path / "jax_training" / "jax_program"
    kept = {path.name for path in PROGRAM.iterdir() if path.is_file()}
    assert {path.name for path in written.iterdir()} == kept
    for path in sorted(PROGRAM.glob("*.[pmy]*")):
        assert without_rounding(written / path.name) == without_rounding(path), path.name
    # The script does not seed torch: it starts from other weights each time it runs alone.
    prove = ["prove", "ddp_toy/before.py", "--against", "jax_training/jax_program"]
    result = CliRunner().invoke(commands, prove)
    assert result.exit_code == 0, result.output


def without_rounding(path: Path) -> str:
    """Text of a file; rows of the comparison, whose last digits depend on the processor, without numbers.

    So is the hash of the README that has these rows.
    """
    text = re.sub(r'^ *"README.md": "\w+",$', "", path.read_text(), flags=re.M)
    return re.sub(r"^(\| \w+ \| [\w ]+ \| same \|).*$", r"\1", text, flags=re.M)
