"""A text of a rank is no device, whatever the function or the variable is called that has it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = "import torch\nimport torch.distributed as dist\n\n\n"
STYLES: tuple[Style, ...] = ("native", "portable")


def after(text: str, style: Style) -> str:
    source = parse((HEAD + dedent(text).lstrip()).encode(), Path("train.py"))
    return rewrite_source(source, options=RewriteOptions(style=style)).data.decode()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "value",
    ["str(dist.get_rank())", 'f"{dist.get_rank()}"', '"%d" % dist.get_rank()'],
)
def test_a_text_of_the_rank_stays(style: Style, value: str) -> None:
    text = f"""
        def visible_device_list(several):
            return {value} if several else None


        visible_device = {value}
    """
    assert after(text, style).count(value) == 2


@pytest.mark.parametrize("style", STYLES)
def test_the_rank_as_a_device_is_rewritten(style: Style) -> None:
    text = """
        def this_device():
            return dist.get_rank()


        def name_of_device():
            return f"cuda:{dist.get_rank()}"


        x = torch.zeros(2).to(this_device())
        y = torch.zeros(2).to(name_of_device())
    """
    text = after(text, style)
    assert "cuda:" not in text
    assert "return dist.get_rank()" not in text
