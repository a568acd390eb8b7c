"""Programs import torch_xla, without which torch does not know the device "xla"; modules leave it to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = "import torch\n\n\ndef run(x):\n    return x.cuda()\n"


@pytest.mark.parametrize(
    "rest",
    [
        '\n\nif __name__ == "__main__":\n    run(torch.ones(2))\n',
        "\n\nrun(torch.ones(2))\n",
        "\n\ndef main():\n    run(torch.ones(2))\n\n\nmain()\n",
        "\n\nresult = run(torch.ones(2))\n",
        "\n\nfor _ in range(3):\n    run(torch.ones(2))\n",
    ],
)
def test_a_program_imports_torch_xla(rest: str) -> None:
    done = rewrite_source(parse((HEAD + rest).encode(), Path("script.py")))
    assert "\nimport torch_xla\n" in done.data.decode()


@pytest.mark.parametrize(
    "rest", ["", "\n\ndef named(f):\n    return f\n\n\n@named\ndef other(x):\n    return run(x)\n"]
)
def test_a_module_does_not(rest: str) -> None:
    done = rewrite_source(parse((HEAD + rest).encode(), Path("module.py")))
    assert "torch_xla" not in done.data.decode()
