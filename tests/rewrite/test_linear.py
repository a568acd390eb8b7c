"""What a rewrite does grows with what a script holds, and no faster: calls are counted, not seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

# What is repeated, and the lines above it.
BODY = "\n\ndef main():\n    x = torch.zeros(1).cuda()\n"
REPEATED = {
    "functions": ("", "\n\ndef f{n}(x):\n    y = x.cuda()\n    return y + {n}\n"),
    "assignments to one name": (BODY, "    x = x + {n}\n"),
    "names": (BODY, "    x{n} = x + {n}\n"),
    "classes": (
        "",
        "\n\nclass C{n}(torch.nn.Module):\n    def forward(self, x):\n        return x * {n}\n",
    ),
    "lines": (BODY, "    print({n})\n"),
    "edits": (BODY, "    torch.cuda.empty_cache()\n    print({n})\n"),
    "findings": ("", "\n\ndef f{n}(x):\n    torch.distributed.new_group([0, {n}])\n    return x\n"),
    "training loops": (
        "",
        "\n\ndef train{n}(model, loader, optimizer):\n    model.cuda()\n    for x in loader:\n"
        "        loss = model(x.cuda()).sum()\n        loss.backward()\n        optimizer.step()\n",
    ),
}
FEWEST = 12


def calls(script: str) -> int:
    """Return how many Python functions are called to rewrite `script`."""
    source = parse(script.encode(), Path("script.py"))
    count = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        rewrite_source(source)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("what", REPEATED)
def test_twice_as_much_takes_twice_the_calls(what: str) -> None:
    head, repeated = REPEATED[what]
    scripts = [
        f"import torch\n{head}" + "".join(repeated.format(n=n) for n in range(FEWEST * times))
        for times in (1, 1, 2, 4)  # the first fills what is kept between scripts
    ]
    _, one, two, four = map(calls, scripts)
    assert four - two <= 2.15 * (two - one)
