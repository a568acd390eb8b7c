"""A parameter that chooses a kernel of which one is called "cuda" is no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import torch
import torch.distributed as dist


def bias_act(x, b, impl="cuda"):
    assert impl in ["ref", "cuda"]
    if impl == "cuda" and b.is_contiguous():
        return torch.ops.mine.bias_act(x, b)
    return x + b


def scaled(x, b, impl="cuda"):
    return bias_act(x * 2, b, impl=impl)


def main(x, b):
    dist.init_process_group("nccl")
    return bias_act(x.cuda(), b.cuda()) + bias_act(x.cuda(), b.cuda(), impl="ref")
"""


def test_its_names_stay() -> None:
    """The default still passes the test of the names, and nothing is reported."""
    done = rewrite_source(parse(SCRIPT.encode(), Path("act.py")))
    after = done.data.decode()
    assert after.count('impl="cuda"):') == 2
    assert 'impl in ["ref", "cuda"]' in after
    assert 'if impl == "cuda" and' in after
    assert not [note for note in done.findings if '"cuda"' in note.message]


@pytest.mark.parametrize("name", ["device", "device_type"])
def test_a_device_is_asked_for_as_before(name: str) -> None:
    """A parameter that is named for a device is one, whatever else it may be."""
    done = rewrite_source(parse(SCRIPT.replace("impl", name).encode(), Path("act.py")))
    assert f'{name} == "xla"' in done.data.decode()


def test_another_function_of_the_name_takes_a_device() -> None:
    """What the call runs decides, not the last part of its name."""
    other = "import other\n" + SCRIPT.replace(
        "return bias_act(x * 2", "return other.bias_act(x * 2"
    )
    done = rewrite_source(parse(other.encode(), Path("act.py")))
    assert [note for note in done.findings if '"cuda"' in note.message]
