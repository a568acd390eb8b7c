"""Devices in the spellings of scripts, resolved through assignments; what is no device stays."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from migrate.reading.script import Script
from migrate.reading.values.devices import Kind
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse
from migrate.syntax.tree import code, nodes_of


def after(script: str) -> str:
    return rewrite_source(
        parse(f"import torch\n{script}\n".encode(), Path("script.py"))
    ).data.decode()


@pytest.mark.parametrize(
    "script",
    [
        "x.cuda()",
        "x.cuda(args.gpu)",
        "x.to(args.gpu)",
        "x.to(args.local_rank)",
        "x.to(0)",
        "x.to(f'cuda:{i}')",
        "x.to('cuda:%d' % i)",
        "x.to('cuda:{}'.format(i))",
        "x.to('cuda:' + str(i))",
        "x.to(torch.cuda.current_device())",
        "x.to(device='cuda', dtype=torch.half)",
        "gpu = args.gpu\nx.to(gpu)",
        "x.to(int(os.environ['LOCAL_RANK']))",
        "torch.zeros(3, device=f'cuda:{i}')",
        "torch.set_default_device('cuda')",
        "device = torch.device('cuda', torch.cuda.current_device())",
        "device = torch.device(type='cuda', index=0)",
        "device = torch.device(args.gpu)",
        "args.device = torch.cuda.current_device()\nx.to(args.device)",
        "config = {'device': 'cuda:0'}",
    ],
)
def test_cuda_becomes_xla(script: str) -> None:
    done = after(script)
    assert "xla" in done
    assert "cuda" not in done
    assert "xla:" not in done


@pytest.mark.parametrize(
    "script",
    [
        "x.to(torch.float16)",
        "x.to(other)",
        "x.to(device)",
        "x.to('cpu')",
        "device = torch.device('cpu')\nx.to(device)",
        "rank = torch.half\nx.to(rank)",
        "for gpu in (torch.half, torch.float):\n    x.to(gpu)",
        "for i in range(gpu):\n    job.send(gpu, local_rank)",
        "'a cuda: kernel'",
        "version = torch.version.cuda",
        "if args.cuda:\n    print('gpu')",
        "device = 3 * rank",
    ],
)
def test_left_alone(script: str) -> None:
    assert after(script) == f"import torch\n{script}\n"


def test_an_index_that_is_calculated_with_stays() -> None:
    script = "device = rank % torch.cuda.device_count()\nseed = 7 + device\nx = x.to(device)"
    done = after(script)
    assert "device = rank" in done
    assert 'x.to("xla")' in done


def test_a_choice_answers_for_the_accelerator_only_where_it_is_one() -> None:
    done = after("x = 1 if torch.cuda.is_available() or args.force else 2")
    assert "x = 1\n" in done
    assert "x = 2\n" in after("x = 1 if not torch.cuda.is_available() and args.force else 2")


def test_a_block_of_comments_survives_its_branch() -> None:
    script = "if torch.cuda.is_available():\n    a = 1\n    # end of the branch\nb = 2"
    assert after(script).endswith("a = 1\n# end of the branch\nb = 2\n")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("put(x, torch.device('cuda'))", Kind.CUDA),
        ("put(x, where='cuda')\nput(1, 'cuda:1')", Kind.CUDA),
        ("put(x, torch.device('cpu'))", Kind.UNKNOWN),
        ("put(x, 'cuda')\nput(x, y)", Kind.UNKNOWN),
        ("put(x)\nput(x, 'cuda')", Kind.UNKNOWN),
        ("put(*x)", Kind.UNKNOWN),
        ("put(x, 'cuda')\nlater(put)", Kind.UNKNOWN),
        ("x.put(x, 'cuda')", Kind.UNKNOWN),
    ],
)
def test_a_parameter_is_the_device_that_all_calls_pass(calls: str, expected: Kind) -> None:
    script = f"import torch\n\n\ndef put(x, where=None):\n    return x.to(where)\n\n\n{calls}\n"
    context = Script(parse(script.encode(), Path("script.py")))
    moved = next(call for call in nodes_of(context.module, cst.Call) if code(call.func) == "x.to")
    assert context.devices.kind(moved.args[0].value) is expected


@pytest.mark.parametrize(
    "script",
    [
        "def loss(x, no_dev=1, std_dev=0):\n    return x * std_dev + no_dev",
        "num_dev = 2\nn_devices = 4\nst_dev = 0",
        "def get_std_dev(n):\n    return 0",
        "def developer():\n    return 1",
    ],
)
def test_a_number_under_a_name_like_a_devices_stays(script: str) -> None:
    assert after(script) == f"import torch\n{script}\n"


def test_the_index_of_a_device_goes() -> None:
    script = "def first_device():\n    return 0\n\n\ndevice = 1\nx = torch.zeros(3).to(device)"
    assert "return 'xla'" in after(script).replace('"', "'")
    assert "device = 'xla'" in after(script).replace('"', "'")
