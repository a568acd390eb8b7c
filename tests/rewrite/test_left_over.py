"""What the removal of a statement leaves: comments about it, variables for it, branches that are the same."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

SLURM = """\
import os
import subprocess

import torch.distributed as dist


def setup(port=None):
    nodes = os.environ["SLURM_NODELIST"]
    addr = subprocess.getoutput(f"scontrol show hostname {nodes} | head -n1")
    MORE
    # specify master port
    if port is not None:
        os.environ["MASTER_PORT"] = str(port)
    elif "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "10685"
    # what comes next
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = addr
    dist.init_process_group("nccl")
"""


def rewritten(script: str) -> Rewrite:
    return rewrite_source(parse(script.encode(), Path("train.py")))


def test_what_only_served_the_address_goes_with_its_comment() -> None:
    after = rewritten(SLURM.replace("    MORE\n", "")).data.decode()
    _, _, body = after.partition("def setup(port=None):\n")
    assert body == (
        '    # what comes next\n    dist.init_process_group("xla", init_method="xla://")\n'
    )


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ("print(addr)", ("addr = ", "nodes = ")),
        ("print(nodes)", ("nodes = ",)),
        ("port = int(os.environ['MASTER_PORT'])", ("# specify master port",)),
    ],
)
def test_what_is_used_elsewhere_stays(more: str, stays: tuple[str, ...]) -> None:
    after = rewritten(SLURM.replace("MORE", more)).data.decode()
    assert [one for one in stays if one not in after] == []


def test_a_call_that_may_do_something_stays() -> None:
    script = SLURM.replace("    MORE\n", "").replace("scontrol show hostname", "touch hosts;")
    assert "addr = subprocess" in rewritten(script).data.decode()


BRANCHES = """\
import torch
import torch.distributed as dist


def place(model, args):
    dist.init_process_group("nccl")
    BODY
    return model
"""


@pytest.mark.parametrize(
    ("body", "merged"),
    [
        ("if args.a:\n    model.to('cuda:0')\nelse:\n    model.to('cuda')", True),
        ("if args.a:\n    # one GPU\n    model.to('cuda:0')\nelse:\n    model.to('cuda')", True),
        # The author's own, a test that may do something, a comment that says which is when, an `elif`.
        ("if args.a:\n    model.eval()\nelse:\n    model.eval()", False),
        ("if args.ask():\n    model.to('cuda:0')\nelse:\n    model.to('cuda')", False),
        ("if args.a:\n    model.to('cuda:0')\nelse:\n    # all\n    model.to('cuda')", False),
        (
            "if args.b:\n    pass\nelif args.a:\n    model.to('cuda:0')\nelse:\n    model.to('cuda')",
            False,
        ),
    ],
)
def test_branches_that_the_edits_make_the_same_are_one(body: str, merged: bool) -> None:
    script = BRANCHES.replace("    BODY\n", textwrap.indent(body, "    ") + "\n")
    after = rewritten(script).data.decode()
    assert ("else:" not in after) is merged
    assert ("# one GPU" in body) is ("# one GPU" in after)


def test_an_import_that_is_needed_above_is_not_there_twice() -> None:
    script = (
        "import argparse\nimport torch\nimport os\n"
        "from torch.distributed import init_process_group\n\n"
        "exec(open('configurator.py').read())\ninit_process_group('nccl')\n"
        "model = torch.nn.Linear(2, 2)\nprint(os.environ['LOCAL_RANK'])\n"
        "model(torch.ones(2)).sum().backward()\n"
    )
    done = rewritten(script)
    assert done.data.decode().count("import os\n") == 1
    assert any("it stands above" in edit.message for edit in done.edits)
