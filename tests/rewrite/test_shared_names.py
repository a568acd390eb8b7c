"""What the body of the main guard binds is global in its replicas only where other code uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import torch
import torch.distributed as dist
from optimizer import make


def show(net):
    print(net{used})


if __name__ == "__main__":
    dist.init_process_group("nccl")
    net = torch.nn.Linear(2, 2).cuda()
    optimizer = make(net)
    show(net)
"""


@pytest.mark.parametrize(("used", "is_global"), [("", False), (", optimizer", True)])
def test_a_module_of_the_same_name_is_no_use(used: str, is_global: bool) -> None:
    """LoRA's GPT-2 and mellotron: `global optimizer`, for `from optimizer import …`."""
    text = rewrite_source(parse(SCRIPT.format(used=used).encode(), Path("script.py"))).data.decode()
    assert ("    global optimizer\n" in text) == is_global


def test_a_variable_of_a_comprehension_is_no_use() -> None:
    """llm.c: `for _ in range(n)` in a class's method beside `_, loss = model(x)` in the guard."""
    script = SCRIPT.format(used="") + "    _, loss = net(torch.ones(2)), 0\n"
    script = script.replace("def show", "LAYERS = [3 for _ in range(2)]\n\n\ndef show")
    text = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    assert "global" not in text


@pytest.mark.parametrize(
    ("line", "declared"),
    [
        ("names = {x for x in range(3)}", "global names"),
        ("table = {x: value for x, value in enumerate('ab')}", "global table"),
        ("total = sum(x for x in range(3))", "global total"),
        ("names = [(last := x) for x in range(3)]", "global last, names"),  # binds a name outside
    ],
)
def test_variables_of_comprehensions_are_their_own(line: str, declared: str) -> None:
    script = SCRIPT.format(used="") + f"    {line}\n\n\n"
    script += "def other():\n    return x, value, last, names, table, total\n"
    text = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    assert [row.strip() for row in text.splitlines() if "global" in row] == [declared]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from optimizer import make", "from optimizer.makers import make"),
        ("from optimizer import make", "import optimizer.makers as makers"),
        ("print(net{used})", "print(vars(net){used})"),
    ],
)
def test_neither_a_package_nor_what_an_object_has_is_a_use(old: str, new: str) -> None:
    script = SCRIPT.replace(old, new).format(used="")
    text = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    assert "global" not in text
