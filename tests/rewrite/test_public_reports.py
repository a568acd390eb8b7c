"""Scripts after public reports of bugs: what the rewrite says of them, in both styles."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = """
import enum
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

"""
TAIL = """

if __name__ == "__main__":
    main()
"""
STYLES = pytest.mark.parametrize("style", ["native", "portable"])


def notes(body: str, style: Style) -> tuple[set[tuple[str, str]], str]:
    """Return the rules and the reported lines of the source, and what the rewrite wrote."""
    script = HEAD.lstrip() + body.strip("\n") + "\n" + TAIL
    done = rewrite_source(
        parse(script.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    lines = script.splitlines()
    return {(note.rule, lines[note.line - 1].strip()) for note in done.findings}, done.data.decode()


MOMENTUM = """
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)
        self.register_buffer("queue", torch.zeros(8, 64))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def put(self, keys):
        at = READ
        self.queue[:, at : at + keys.shape[0]] = keys.T
        self.pointer[0] = (at + keys.shape[0]) % 64

    def forward(self, x):
        keys = self.net(x)
        self.put(keys)
        return keys @ self.queue.clone()


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DDP(Contrast().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.zeros(64, 8), batch_size=8):
        model(x.cuda()).sum().backward()
        optimizer.step()
"""


@STYLES
@pytest.mark.parametrize("read", ["int(self.pointer)", "self.pointer.item()"])
def test_the_pointer_of_a_queue(style: Style, read: str) -> None:
    found, _ = notes(MOMENTUM.replace("READ", read), style)
    rules = {rule for rule, line in found if "self.queue[:, at" in line or "at = " in line}
    assert "XLA107" in rules
    assert rules & {"XLA201", "XLA202"}


GATHER = """
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x = torch.zeros(3 + dist.get_rank(), 4).cuda()
    size = torch.tensor([len(x)]).cuda()
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    most = max(int(one) for one in sizes)
    PAD
    parts = [torch.zeros_like(wide) for _ in sizes]
    dist.all_gather(parts, wide)
    print(torch.cat(parts).shape)
"""


@STYLES
@pytest.mark.parametrize(
    "pad",
    [
        "wide = x.new_zeros(most, 4); wide[: len(x)] = x",
        "wide = F.pad(x, (0, 0, 0, most - len(x)))",
        "wide = torch.cat([x, x.new_zeros(most - len(x), 4)])",
    ],
)
def test_a_gather_of_what_was_just_padded(style: Style, pad: str) -> None:
    pad = pad.replace("; ", "\n    ")
    found, _ = notes(GATHER.replace("PAD", pad), style)
    assert ("XLA303", "dist.all_gather(parts, wide)") in found
    assert ("XLA303", "dist.all_gather(sizes, size)") not in found


DEFAULT = """
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    SET
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.zeros(64, 4, device="cpu"), batch_size=8, drop_last=True):
        model(x.cuda()).sum().backward()
        optimizer.step()
"""


@STYLES
@pytest.mark.parametrize(
    "setter",
    [
        'torch.set_default_device("cuda")',
        'torch.set_default_device(torch.device("cuda"))',
        'torch.set_default_tensor_type("torch.cuda.FloatTensor")',
    ],
)
def test_a_model_that_is_made_on_the_default_device(style: Style, setter: str) -> None:
    found, after = notes(DEFAULT.replace("SET", setter), style)
    assert not [rule for rule, _ in found if rule in ("ddp", "optimizer-order", "XLA706")]
    assert "set_swap_module_params" not in after
    outside = DEFAULT.replace("    SET\n", "").replace("def main", f"{setter}\n\n\ndef main")
    found, _ = notes(outside, style)
    assert ("XLA706", setter) in found


DATA = """
def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank())
    x, y = torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)
    MAKE
    model = DDP(nn.Linear(4, 4).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in DataLoader(data, batch_size=8, drop_last=True):
        F.cross_entropy(model(a.to(device)), b.to(device)).backward()
        optimizer.step()
"""


@STYLES
@pytest.mark.parametrize(
    ("make", "reported"),
    [
        ("data = TensorDataset(x.to(device), y.to(device))", True),
        ("x = x.cuda(); data = TensorDataset(x, y)", True),
        ("data = TensorDataset(x, y)", False),
    ],
)
def test_a_data_set_on_the_device(style: Style, make: str, reported: bool) -> None:
    found, _ = notes(DATA.replace("MAKE", make.replace("; ", "\n    ")), style)
    assert any(rule == "XLA114" for rule, _ in found) is reported


SAVES = """
class Mode(enum.Enum):
    FAST = "fast"


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DDP(nn.Linear(4, 4).cuda())
    state = {"model": model.module.state_dict(), "python": random.getstate(), "what": WHAT}
    if dist.get_rank() == 0:
        torch.save(state, "state.pt")
    dist.barrier()
    state = torch.load("state.pt", weights_only=False)
    random.setstate(state["python"])
"""


@pytest.mark.parametrize("what", ["Mode.FAST", "nn.GELU", "[Mode.FAST]", "dict(norm=nn.LayerNorm)"])
def test_what_xm_save_cannot_copy(what: str) -> None:
    found, after = notes(SAVES.replace("WHAT", what), "native")
    assert 'xm.save(state, "state.pt", global_master=True)' in after
    assert ("XLA831", 'torch.save(state, "state.pt")') in found
    assert ("XLA831", 'random.setstate(state["python"])') in found


@pytest.mark.parametrize("what", ["Mode.FAST.value", "nn.GELU.__name__", "F.gelu", "torch.float32"])
def test_what_xm_save_writes_as_it_is(what: str) -> None:
    found, _ = notes(SAVES.replace("WHAT", what), "native")
    assert ("XLA831", 'torch.save(state, "state.pt")') not in found


def test_the_portable_save_keeps_tuples() -> None:
    found, _ = notes(SAVES.replace("WHAT", "3"), "portable")
    assert not [rule for rule, _ in found if rule == "XLA831"]


MEMORY = """
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DDP(nn.Linear(4, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.zeros(64, 4), batch_size=8, drop_last=True):
        optimizer.zero_grad()
        try:
            model(x.cuda()).sum().backward()
        except RuntimeError as error:
            if "TEXT" not in str(error):
                raise
            continue
        optimizer.step()
"""


@STYLES
def test_running_out_of_memory_in_a_step(style: Style) -> None:
    found, _ = notes(MEMORY.replace("TEXT", "out of memory"), style)
    assert ("XLA607", "try:") in found
    found, _ = notes(MEMORY.replace("TEXT", "corrupt record"), style)
    assert ("XLA607", "try:") not in found
