"""A variable that only served what the rewrite removed goes with it, if a finding is about its value."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.catalogue.target import TARGETS
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse


def rewritten(body: str, style: str = "native") -> Rewrite:
    text = "import os\n\nimport torch\n\n\ndef setup(model, log):\n" + textwrap.indent(body, "    ")
    return rewrite_source(
        parse(text.encode(), Path("setup.py")), options=RewriteOptions(style=style)
    )


DEAD = [
    'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\n',
    'local = int(os.environ["SLURM_LOCALID"])\ntorch.cuda.set_device(local)\nmodel.cuda()\n',
    'gpu = int(os.environ["LOCAL_RANK"])\nreturn model.to(torch.device("cuda", gpu))\n',
    "free, total = torch.cuda.mem_get_info()\n"
    "torch.cuda.set_per_process_memory_fraction(0.5 * total / free)\n",
]


@pytest.mark.parametrize("body", DEAD)
def test_a_variable_that_nothing_uses_any_more_goes_and_is_no_finding(body: str) -> None:
    done = rewritten(body)
    assert done.findings == ()
    name = body.partition(" ")[0].rstrip(",")
    assert f"{name} " not in done.data.decode()
    assert any("nothing uses it any more" in edit.message for edit in done.edits)
    again = rewrite_source(parse(done.data, Path("setup.py")))
    assert not again.changed


def test_what_an_edit_left_unused_goes_in_a_launched_script_too() -> None:
    """The rank is set for each replica, so that no finding is about its value."""
    text = textwrap.dedent(
        """
        import os

        import torch
        import torch.distributed as dist


        def main():
            dist.init_process_group("nccl")
            local_rank = int(os.environ["LOCAL_RANK"])
            world = int(os.environ["WORLD_SIZE"])
            torch.cuda.set_device(local_rank)
            model = torch.nn.Linear(2, 2).to(torch.device("cuda", local_rank))
            print(model, world)


        if __name__ == "__main__":
            main()
        """
    )
    for target in TARGETS:
        options = RewriteOptions(config=Config(target=target))
        done = rewrite_source(parse(text.encode(), Path("train.py")), options=options)
        after = done.data.decode()
        assert "local_rank" not in after
        assert 'world = int(os.environ["WORLD_SIZE"])' in after
        assert [e.line for e in done.edits if e.message.startswith("remove `local_rank")] == [10]


ALIVE = [
    'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\nlog(local_rank)\n',
    'local_rank = int(os.environ["LOCAL_RANK"])\nmodel.cuda()\n',  # nothing used it before
    'local_rank = log(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\n',  # may do more
    'global local_rank\nlocal_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\n',
    'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)\nlog(locals())\n',
    'model.rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(model.rank)\n',
]


@pytest.mark.parametrize("body", ALIVE)
def test_what_is_used_or_may_do_something_stays_with_its_finding(body: str) -> None:
    done = rewritten(body)
    assert "LOCAL_RANK" in done.data.decode()
    assert [note.rule for note in done.findings] == ["rank-environment"]


OPTIONS = """
import argparse
import re

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--width", type=int, default=2)
    args = parser.parse_args()
    model = torch.nn.Linear(args.width, 2).to("cuda")
    if args.compile:
        model = torch.compile(model)
    print(model, re.compile("a"), EXTRA)
"""


@pytest.mark.parametrize(
    ("extra", "lines"),
    [("None", [10]), ("args.compile", []), ('getattr(args, "compile")', [])],
)
def test_an_option_that_nothing_reads_any_more_is_told(extra: str, lines: list[int]) -> None:
    done = rewrite_source(parse(OPTIONS.replace("EXTRA", extra).encode(), Path("train.py")))
    notes = [note for note in done.findings if note.subject == "--compile"]
    assert [(note.line, note.rule) for note in notes] == [(line, "compile") for line in lines]
    assert "torch.compile" not in done.data.decode()
