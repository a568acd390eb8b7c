"""Scripts that import torch in functions only: torch_xla is imported where torch is."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def rewrite(script: str) -> str:
    return rewrite_source(parse(script.encode(), Path("policy.py"))).data.decode()


def test_torch_in_a_try_of_a_function() -> None:
    text = rewrite("""\
def create(model, device=None):
    if device is None:
        try:
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
        except ImportError:
            device = "cpu"
    return model.to(device)
""")
    assert (
        """\
        try:
            import torch
            import torch_xla

            device = "xla"
        except ImportError:
"""
        in text
    )
    assert text.startswith("def create")
    assert rewrite(text) == text


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("import torch", 'return model.to(torch.device("cuda"))'),
        ("from torch import device", 'return model.to(device("cuda", 0))'),
        ("import torch.nn as nn", "return nn.Linear(2, 2).cuda()"),
        ("import torch", 'return (lambda: model.to("cuda"))()'),
    ],
)
def test_torch_in_a_method(line: str, use: str) -> None:
    text = rewrite(f"class Maker:\n    def place(self, model):\n        {line}\n\n        {use}\n")
    assert f"    def place(self, model):\n        {line}\n        import torch_xla\n" in text
    assert text.count("import torch_xla") == 1


def test_one_import_for_a_function_and_the_functions_in_it() -> None:
    text = rewrite("""\
def place(model):
    import torch

    def where():
        return torch.device("cuda")

    return model.to(where()), model.to("cuda:0")
""")
    assert "    import torch\n    import torch_xla\n" in text
    assert text.count("import torch_xla") == 1


def test_a_line_that_may_not_have_run_is_not_enough() -> None:
    text = rewrite("""\
def place(model):
    if model is None:
        from torch import nn

        model = nn.Linear(2, 2)
    return model.cuda()
""")
    assert text.startswith("import torch_xla\n")


def test_a_line_that_does_more_than_import() -> None:
    text = rewrite("def make():\n    import torch; x = torch.ones(2).cuda()\n    return x\n")
    assert "    import torch_xla\n    import torch; x = torch.ones(2).to(" in text


@pytest.mark.parametrize(
    "script",
    [
        # A module that imports torch leaves torch_xla to the program.
        'import torch\n\n\ndef place(model):\n    return model.to(torch.device("cuda"))\n',
        "def place(model):\n    import torch\n\n    return model.to(torch.float32)\n",
    ],
)
def test_no_import_is_added_where_none_is_needed(script: str) -> None:
    assert "torch_xla" not in rewrite(script)
