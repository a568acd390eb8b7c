"""Scripts that indent some functions by more than others."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

FIRST = "def seed(n):\n  torch.manual_seed(n)\n\n\n"
MAIN = """\
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.randn(4, 8).cuda()).mean()
        loss.backward()
        optimizer.step()


"""
HEAD = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "guard",
    [
        'if __name__ == "__main__":\n    main()\n',
        'if __name__ == "__main__": main()\n',
        'if __name__ == "__main__":\n    if os.environ.get("OUT"):\n        print("out")\n    main()\n',
    ],
)
def test_new_blocks_are_indented_as_those_around(style: Style, guard: str) -> None:
    script = HEAD + FIRST + MAIN + guard
    done = rewrite_source(
        parse(script.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    after = done.data.decode()
    narrow = [line for line in after.splitlines() if line.startswith("  ") and line[2] != " "]
    assert all("manual_seed" in line for line in narrow), after
    widths = {len(line) - len(line.lstrip()) for line in after.splitlines() if line.strip()}
    assert widths - {2} <= {0, 4, 8, 12}
    assert "        with " in after


def test_a_narrow_function_stays_narrow() -> None:
    narrow = "\n".join(
        " " * ((len(line) - len(line.lstrip())) // 2) + line.lstrip() for line in MAIN.split("\n")
    )
    script = HEAD + "def seed(n):\n    torch.manual_seed(n)\n\n\n" + narrow + "main()\n"
    after = rewrite_source(parse(script.encode(), Path("train.py"))).data.decode()
    assert "\n    with torch_xla.step():\n      loss" in after
