"""Small projects as teams bring them: with DeepSpeed, with CUDA kernels of their own, with plain DDP."""

from __future__ import annotations

from pathlib import Path

PLAIN = """
import argparse

import torch
import torch.distributed as dist
from net import Net
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(args.local_rank)
    model = DDP(Net().cuda(), device_ids=[args.local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps):
        x = torch.randn(16 BATCH, 64).cuda()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with open("done.txt", "w") as file:
        file.write("trained")


if __name__ == "__main__":
    main()
"""
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))

    def forward(self, x):
        return self.layers(x)
"""
DEEPSPEED = """
import argparse

import deepspeed
import torch
from net import Net


def main():
    parser = argparse.ArgumentParser()
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed()
    engine, _, _, _ = deepspeed.initialize(args=args, model=Net())
    for step in range(10):
        loss = engine(torch.randn(16, 64).cuda()).square().mean()
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
"""
KERNEL = """
import os

import torch
from torch.utils.cpp_extension import load

fused = load("fused", sources=[os.path.join(os.path.dirname(__file__), "fused.cu")])


def bias_act(x, bias):
    return fused.bias_act(x, bias)
"""
OPTIONAL = """
try:
    import deepspeed
except ImportError:
    deepspeed = None
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """The folder with the files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    return folder


def plain(folder: Path, batch: str = "") -> Path:
    """DDP that is rewritten with nothing left; `batch` is added to the number of rows of a step."""
    return write(folder, {"train.py": PLAIN.replace(" BATCH", batch), "net.py": NET})


def deepspeed(folder: Path) -> Path:
    """A script that hands its training to DeepSpeed."""
    return write(folder, {"train.py": DEEPSPEED, "net.py": NET})


def kernels(folder: Path) -> Path:
    """A model that calls a CUDA kernel of the project's own, built where it is imported."""
    net = NET.replace("from torch import nn", "from op import bias_act\nfrom torch import nn")
    files = {
        "train.py": PLAIN.replace(" BATCH", ""),
        "net.py": net,
        "op/__init__.py": "from op.fused import bias_act\n",
        "op/fused.py": KERNEL,
    }
    return write(folder, files)


def sharded(folder: Path) -> Path:
    """FSDP with a policy, and a checkpoint of it."""
    text = PLAIN.replace(" BATCH", "").replace(
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.distributed.fsdp import StateDictType\n"
        "from torch.distributed.fsdp.wrap import always_wrap_policy",
    )
    text = text.replace(
        "DDP(Net().cuda(), device_ids=[args.local_rank])",
        "FSDP(Net().cuda(), auto_wrap_policy=always_wrap_policy)\n"
        "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)",
    )
    return write(folder, {"train.py": text, "net.py": NET})


def optional(folder: Path) -> Path:
    """Plain DDP in which DeepSpeed is imported where it is there."""
    text = PLAIN.replace(" BATCH", "").replace(
        "import argparse\n", f"import argparse\n{OPTIONAL}", 1
    )
    serve = "import triton\nimport torch\n"
    return write(folder, {"train.py": text, "net.py": NET, "tools/serve.py": serve})
