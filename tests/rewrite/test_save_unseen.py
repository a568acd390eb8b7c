"""A save below a condition of which nothing is known is rewritten, and is something to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.hazard import Severity
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Note
from migrate.syntax.source import parse

SCRIPT = """
import functools

import torch
import torch.distributed as dist
from cluster import chosen, is_boss


{decorator}
def finish(model, path, leader, keep: bool, every=2):
    {test}
        torch.save(model.state_dict(), path)


def main(model, path):
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(model.cuda())
    {call}


if __name__ == "__main__":
    main()
"""


def notes(decorator: str = "", test: str = "if True:", call: str = "pass") -> list[Note]:
    text = SCRIPT.format(decorator=decorator, test=test, call=call)
    done = rewrite_source(parse(text.encode(), Path("train.py")))
    return [note for note in done.findings if note.rule == "save"]


@pytest.mark.parametrize(
    ("decorator", "test", "named"),
    [
        ("", "if leader:", "`leader` (line 11)"),
        ("", "if every and not leader:", "`leader` (line 11)"),
        ("", "if is_boss():", "`is_boss()` (line 11)"),
        ("@chosen", "if True:", "`@chosen` (line 9)"),
        ("@chosen(0)", "if True:", "`@chosen` (line 9)"),
    ],
)
def test_it_is_something_to_look_at(decorator: str, test: str, named: str) -> None:
    (note,) = notes(decorator, test)
    assert named in note.message
    assert note.severity is Severity.INFO


@pytest.mark.parametrize(
    ("decorator", "test", "call"),
    [
        ("", "if keep:", "pass"),
        ("", "if every:", "pass"),
        ("", "if leader:", "finish(model, path, 1, True)"),
        ("", "if path.exists():", "pass"),
        ("@functools.cache", "if True:", "pass"),
        ("@torch.no_grad()", "if True:", "pass"),
    ],
)
def test_what_is_known_is_not(decorator: str, test: str, call: str) -> None:
    assert notes(decorator, test, call) == []


def test_a_caller_that_passes_the_rank_makes_it_a_test_of_the_rank() -> None:
    found = notes("", "if leader:", "finish(model, path, dist.get_rank() == 0, True)")
    assert not [note for note in found if note.rule == "save"]


BY_KEYS = """\
import torch
import torch.distributed as dist


def main(parts, out, epochs):
    dist.init_process_group(backend="nccl")
    for name, part in parts.items():
        {save}
    {other}:
        torch.save({{}}, f"{{out}}/all.pt")


main({{}}, "a", 3)
"""
OF_PART = "torch.save(part.cuda(), {})"


@pytest.mark.parametrize(
    ("save", "other", "lines"),
    [
        (OF_PART.format("f'{out}/{name}.pt'"), "if dist.get_rank() == 0", [8]),
        (OF_PART.format("f'{out}/{name}.pt'"), "if epochs", []),
        (OF_PART.format("f'{out}/{part}.pt'"), "if dist.get_rank() == 0", []),
        (OF_PART.format("f'{out}/{dist.get_rank()}-{name}.pt'"), "if dist.get_rank() == 0", []),
    ],
)
def test_a_key_in_the_path_may_be_another_on_each_replica(
    save: str, other: str, lines: list[int]
) -> None:
    script = BY_KEYS.format(save=save, other=other)
    found = rewrite_source(parse(script.encode(), Path("train.py"))).findings
    assert [note.line for note in found if "in the path is the same" in note.message] == lines
