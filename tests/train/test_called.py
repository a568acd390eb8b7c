"""Which function a call is: what binds its name decides, and only then the name."""

from __future__ import annotations

import ast

import pytest

from migrate.train.slice.called import is_call_of

GROUP = "torch.distributed.init_process_group"


@pytest.mark.parametrize(
    ("source", "is_torch"),
    [
        ("import torch\ntorch.distributed.init_process_group('nccl')", True),
        ("import torch.distributed as dist\ndist.init_process_group('nccl')", True),
        ("from torch.distributed import init_process_group\ninit_process_group('nccl')", True),
        ("from torch import distributed as d\nd.init_process_group('nccl')", True),
        ("def f():\n    import torch.distributed as dist\n    dist.init_process_group()", True),
        ("def f(dist):\n    dist.init_process_group('nccl')", True),
        ("def init_process_group(rank): ...\ninit_process_group(3)", False),
        ("from comm import init_process_group\ninit_process_group(3)", False),
        ("import horovod.torch as hvd\nhvd.init_process_group()", False),
    ],
)
def test_torch_opens_a_process_group(source: str, is_torch: bool) -> None:
    assert _is_call(source, "init_process_group", GROUP) is is_torch


@pytest.mark.parametrize(
    ("source", "is_builtin"),
    [
        ("exec(open('configurator.py').read())", True),
        ("def exec(sql): ...\nexec('select 1')", False),
        ("from database import exec\nexec('select 1')", False),
        ("cursor = connect()\ncursor.exec('select 1')", False),
    ],
)
def test_python_executes_a_text(source: str, is_builtin: bool) -> None:
    assert _is_call(source, "exec", "builtins.exec") is is_builtin


def _is_call(source: str, name: str, dotted: str) -> bool:
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (function,) = [call.func for call in calls if ast.unparse(call.func).endswith(name)]
    return is_call_of(tree, function, dotted)
