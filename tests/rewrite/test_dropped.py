"""What an edit would have needed that goes with the code around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def test_a_step_in_a_branch_that_goes_needs_no_import() -> None:
    script = """\
import torch


def train(model, loader, optimizer):
    if torch.cuda.is_available():
        model = model.cuda()
    else:
        for x, y in loader:
            model(x.to("cuda"), y.to("cuda")).backward()
            optimizer.step()
    return model
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    text = done.data.decode()
    assert text.startswith("import torch\n\n\ndef train(model, loader, optimizer):\n")
    assert text.endswith('    model = model.to("xla")\n    return model\n')
    assert "torch_xla" not in text


def test_what_goes_with_an_argument_is_not_told() -> None:
    script = """\
import torch


def wait(rank):
    torch.distributed.barrier(device_ids=[rank % torch.cuda.device_count()])
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert b'xm.rendezvous("wait")' in done.data
    assert done.findings == ()


def test_a_key_is_no_device() -> None:
    script = """\
import torch


def place(config, x):
    return x.cuda() if config["cuda"] else x
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert b'return x.to("xla") if config["cuda"] else x' in done.data
    assert done.findings == ()


GATHERS = """\
import logging
import pickle

import torch
import torch.distributed as dist

calls = 0
logger = logging.getLogger(__name__)


def all_gather(data, group):
    storage = torch.ByteStorage.from_buffer(pickle.dumps(data))
    tensor = torch.ByteTensor(storage).to("cuda")
    tensors = []
    for _ in range(dist.get_world_size()):
        tensors.append(torch.empty_like(tensor))
    LINE
    dist.all_gather(tensors, tensor)
    found = []
    for tensor in tensors:
        found.append(pickle.loads(tensor.cpu().numpy().tobytes()))
    return found
"""


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("tensors[0] = tensors[0] + 0", True),
        ("print(len(tensors))", False),
        ('logger.info("gathering")', False),
        ("all_gather.calls = 1", False),
        ("group.count(data)", False),
        ("assert len(tensors) < 9", False),
        ('if tensor.numel() > 9: raise ValueError("too long")', False),
        ("global calls; calls = 1", False),
    ],
)
def test_a_gather_of_pickled_objects_keeps_what_others_see(line: str, goes: bool) -> None:
    script = GATHERS.replace("LINE", line)
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert (line not in done.data.decode()) is goes
    assert (b"all_gather_object(found, data" in done.data) is goes
    message = "pickled objects are gathered as tensors, whose lengths differ"
    assert any(message in finding.message for finding in done.findings) is not goes
