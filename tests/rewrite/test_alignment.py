"""Arguments below one another, after an edit of the function's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = "import torch\nimport torch.multiprocessing as mp\n\n\ndef worker(rank, a, b):\n    print(rank)\n\n\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            "    mp.spawn(worker,\n             args=(1,\n                   2),\n             nprocs=2)",
            "    torch_xla.launch(worker,\n                     args=(1,\n                           2))",
        ),
        # Not aligned: as it was.
        (
            "    mp.spawn(\n        worker,\n        args=(1, 2),\n    )",
            "    torch_xla.launch(\n        worker,\n        args=(1, 2),\n    )",
        ),
        (
            "    mp.spawn(worker, args=(1,\n        2))",
            "    torch_xla.launch(worker, args=(1,\n        2))",
        ),
        # Hanging, inside of what is aligned.
        (
            "    mp.spawn(worker,\n             args=(\n        1, 2))",
            "    torch_xla.launch(worker,\n                     args=(\n        1, 2))",
        ),
    ],
)
def test_arguments_stay_aligned(call: str, expected: str) -> None:
    script = f'{HEAD}if __name__ == "__main__":\n{call}\n'
    done = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    assert done.endswith(f'if __name__ == "__main__":\n{expected}\n')


def test_a_shorter_name_moves_them_to_the_left() -> None:
    script = "import torch\n\nx = torch.ones(3).cuda()\ntorch.save(x,\n           'x.pt')\n"
    done = rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()
    assert "xm.save(x,\n        'x.pt'" in done
