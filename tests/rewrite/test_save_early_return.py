"""Ways out of a function, or of a branch, before what it saves."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist


def store(path, model, step, keep=True):
{body}
    os.makedirs("out", exist_ok=True)
    torch.save(model.state_dict(), "out/last.pt")


def train(model, loader, optimizer, args):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model.cuda()
{made}
    for step, x in enumerate(loader):
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        if rank == 0:
            store(path, model, step)
"""


def saved(body: str, made: str, portable: bool) -> tuple[str, list[str]]:
    text = SCRIPT.format(body=textwrap.indent(body, "    "), made=textwrap.indent(made, "    "))
    options = RewriteOptions(style="portable" if portable else "native")
    done = rewrite_source(parse(text.encode(), Path("script.py")), options=options)
    after = done.data.decode()
    function = after[after.index("def store") : after.index("def train")]
    return function, [f.message for f in done.findings if f.rule == "save"]


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
@pytest.mark.parametrize(
    "body",
    [
        "if path is None:\n    return",
        "if not path:\n    return",
        "if step % 10 != 0:\n    return",
        "if not keep or step == 0:\n    return",
        "if path is None:\n    raise ValueError(step)",
        "assert path",
        "if keep:\n    if step == 0:\n        return",
    ],
)
def test_what_all_replicas_take_alike_stays_with_all(body: str, portable: bool) -> None:
    function, messages = saved(body, "path = args.out", portable)
    lines = function.splitlines()
    assert textwrap.indent(body, "    ").splitlines() == lines[1 : 2 + body.count("\n")]
    assert messages == []
    assert "torch.save" not in function
    assert any(line.startswith("        os.makedirs") for line in lines)


def test_what_it_prints_first_stays_with_the_first_replica() -> None:
    body = 'if path is None:\n    print("nothing to do")\n    return'
    function, messages = saved(body, "path = args.out", False)
    assert messages == []
    assert function.splitlines()[1:5] == [
        "    if path is None:",
        "        if xm.is_master_ordinal(local=False):",
        '            print("nothing to do")',
        "        return",
    ]


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
@pytest.mark.parametrize(
    ("body", "made"),
    [
        (
            "if path is None:\n    return",
            "path = None\nif rank == 0:\n    path = args.out",
        ),
        ("if os.path.exists(path):\n    return", "path = args.out"),
        ("with open(path) as file:\n    if file.read():\n        return", "path = args.out"),
        ("try:\n    open(path)\nexcept OSError:\n    return", "path = args.out"),
        ("for name in os.listdir(path):\n    if name == 'x':\n        return", "path = args.out"),
        ("if path:\n    pass\nelse:\n    return", "path = args.out"),
    ],
)
def test_where_it_may_differ_the_first_replica_saves_alone(
    body: str, made: str, portable: bool
) -> None:
    function, messages = saved(body, made, portable)
    assert function.splitlines()[1] == "    " + body.splitlines()[0]
    assert "torch.save(" not in function
    assert portable or "master_only=False)" in function
    assert messages == []


@pytest.mark.parametrize("leave", ["continue", "break", "return", "raise ValueError", "sys.exit()"])
def test_a_way_out_of_the_branch_itself_keeps_the_save_there(leave: str) -> None:
    """The first replica saves alone, where nothing is pending."""
    script = f"""
    import sys

    import torch
    import torch.distributed as dist


    def train(model, loader, optimizer, out):
        rank = dist.get_rank()
        model.cuda()
        for x in loader:
            model(x.cuda()).mean().backward()
            optimizer.step()
            if rank == 0:
                if out is None:
                    {leave}
                torch.save(model.state_dict(), out)
    """
    done = rewrite_source(parse(textwrap.dedent(script).encode(), Path("script.py")))
    text = done.data.decode()
    assert "        torch_xla.sync()\n        if rank == 0:\n            if out is None:\n" in text
    assert "            xm.save(model.state_dict(), out, master_only=False)\n" in text
    assert [f.message for f in done.findings if f.rule in ("save", "XLA301")] == []


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
def test_an_assertion_in_a_loop_is_no_way_out(portable: bool) -> None:
    """The loop stays with the first replica; it was said that it may leave the function."""
    loop = "for part in model.parameters():\n    assert isinstance(part, torch.Tensor)\n    print(part.shape)"
    function, reasons = saved(loop, 'path = "out"', portable)
    assert not reasons
    lines = [line.strip() for line in function.splitlines()]
    test = next(i for i, line in enumerate(lines) if line.startswith("if "))
    assert test < lines.index("assert isinstance(part, torch.Tensor)")
