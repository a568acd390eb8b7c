"""A number of GPUs that is only compared with 0 asks whether there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

QUESTIONS = [
    "torch.cuda.device_count() > 0",
    "torch.cuda.device_count() >= 1",
    "torch.cuda.device_count() != 0",
    "not torch.cuda.device_count() == 0",
    "torch.accelerator.device_count() > 0",
    "torch.cuda.is_available() and torch.cuda.device_count() > 0",
    "torch.cuda.device_count() > 0 and torch.cuda.is_available()",
    "torch.cuda.device_count()",
]


def run(text: str, style: Style = "native") -> Rewrite:
    source = parse(f"import torch\n\n{text}\n".encode(), Path("script.py"))
    return rewrite_source(source, options=RewriteOptions(style=style))


@pytest.mark.parametrize("question", QUESTIONS)
def test_device_chosen_by_a_count_is_xla(question: str) -> None:
    result = run(f'device = torch.device("cuda:0" if {question} else "cpu")')
    assert 'device = torch.device("xla")' in result.data.decode()
    assert not result.findings


@pytest.mark.parametrize("question", QUESTIONS)
def test_portable_device_is_that_of_shims(question: str) -> None:
    result = run(f'device = torch.device("cuda:0" if {question} else "cpu")', "portable")
    assert "device_count" not in result.data.decode()
    assert result.data.decode().count("shims.device_type()") == 1
    assert not result.findings


@pytest.mark.parametrize(
    "test", ["torch.cuda.device_count() == 0", "torch.cuda.device_count() < 1"]
)
def test_portable_question_for_none_is_turned(test: str) -> None:
    text = f"if {test}:\n    print('slow')\nflag = not {test}"
    result = run(text, "portable")
    assert "if shims.device_type() == 'cpu':" in result.data.decode()
    assert "flag = shims.device_type() != 'cpu'" in result.data.decode()


@pytest.mark.parametrize(
    "test", ["torch.cuda.device_count() > 1", "torch.cuda.device_count() == 2"]
)
def test_count_of_several_is_reported(test: str) -> None:
    result = run(f"many = {test}")
    assert f"many = {test}" in result.data.decode()
    assert ["is 0 on a TPU" in finding.message for finding in result.findings] == [True]


def test_count_in_a_replica_that_asks_for_any_is_answered() -> None:
    text = (
        'import torch.distributed as dist\n\n\ndef main():\n    dist.init_process_group("nccl")\n'
        '    device = "cuda" if torch.cuda.device_count() > 0 else "cpu"\n'
        "    print(device, torch.cuda.device_count())\n\n\nif __name__ == '__main__':\n    main()"
    )
    result = run(text)
    assert 'device = "xla"' in result.data.decode()
    assert "print(device, xr.local_device_count())" in result.data.decode()
