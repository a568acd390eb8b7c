"""What an edit would have needed that goes with the code around it."""

from __future__ import annotations

from pathlib import Path

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
