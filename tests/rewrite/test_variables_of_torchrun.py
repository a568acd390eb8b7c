"""Variables that torchrun sets, read where a launched replica has its rank and not these."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.reading.tree.source import parse
from migrate.rewrite.story import rewrite_source

SCRIPT = """\
import os

import torch.distributed as dist

{definitions}


def main():
{body}
    dist.init_process_group("nccl")


if __name__ == "__main__":
    main()
"""
BY_TORCHRUN = """
def by_torchrun():
    return os.environ.get("LOCAL_RANK") is not None


def master_port():
    if by_torchrun():
        return int(os.environ["MASTER_PORT"])
    return 29500
"""


def reports(body: str, definitions: str = "") -> list[str]:
    text = SCRIPT.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), "    "),
        definitions=textwrap.dedent(definitions).strip(),
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [note.message for note in done.findings if "this raises" in note.message]


@pytest.mark.parametrize(
    ("body", "definitions"),
    [
        ('os.environ["MASTER_PORT"] = str(master_port())', BY_TORCHRUN),
        ("port = master_port()\nos.environ['MASTER_PORT'] = str(port)", BY_TORCHRUN),
        ('os.environ.update(MASTER_PORT=f"{master_port()}")', BY_TORCHRUN),
        ('os.environ.setdefault("MASTER_PORT", str(master_port()))', BY_TORCHRUN),
        ("print(master_port())", BY_TORCHRUN),
        ('if "LOCAL_RANK" in os.environ:\n    print(os.environ["MASTER_ADDR"])', ""),
        ('if os.getenv("RANK"):\n    print(int(os.environ["GROUP_RANK"]))', ""),
        ('print(os.environ["MASTER_ADDR"] if "WORLD_SIZE" in os.environ else "here")', ""),
        ('"RANK" in os.environ and print(os.environ["MASTER_PORT"])', ""),
        ('port = os.environ["MASTER_PORT"]\nos.environ["MASTER_PORT"] = port', ""),
    ],
)
def test_a_variable_that_only_torchrun_sets_is_reported(body: str, definitions: str) -> None:
    assert len(reports(body, definitions)) == 1


@pytest.mark.parametrize(
    ("body", "definitions"),
    [
        ('if "MASTER_ADDR" in os.environ:\n    print(os.environ["MASTER_ADDR"])', ""),
        (
            "if by_torchrun():\n    print(os.environ['MASTER_ADDR'])",
            "def by_torchrun():\n    return 'TORCHELASTIC_RUN_ID' in os.environ",
        ),
        ('os.environ["MASTER_PORT"] = "1"\nprint(os.environ["MASTER_PORT"])', ""),
        (
            'os.environ["MASTER_PORT"] = "1"\nshow()',
            'def show():\n    print(os.environ["MASTER_PORT"])',
        ),
        ('print(os.environ.get("MASTER_PORT", "none"))', ""),
    ],
)
def test_a_variable_that_is_asked_for_or_set_before_is_not(body: str, definitions: str) -> None:
    assert reports(body, definitions) == []


def test_the_finding_where_it_is_set_says_that_both_go() -> None:
    text = SCRIPT.format(
        body='    os.environ["MASTER_PORT"] = str(master_port())', definitions=BY_TORCHRUN.strip()
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    assert any("MASTER_PORT is also read: remove both" in note.message for note in done.findings)
    assert not any("LOCAL_RANK" in note.message for note in done.findings)
