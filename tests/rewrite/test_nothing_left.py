"""After a rewrite, what is left of CUDA is named by a finding: an independent look at the output.

The examples of the rules are looked at where they are rewritten: test_rules.py, test_torch_tpu.py.
"""

from __future__ import annotations

import ast
import inspect
import types
from pathlib import Path

import pytest
import torch

from migrate.catalogue.target import TARGETS, TPU, XLA, Target
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse
from tests.rewrite.cuda_left import imports_of, is_cuda, unaccounted

NAMES = sorted(
    name
    for name in dir(torch.cuda)
    if not name.startswith("_")
    and not isinstance(getattr(torch.cuda, name), types.ModuleType)
    and getattr(getattr(torch.cuda, name), "__module__", "torch.cuda").startswith("torch")
)
TRAINING = {
    "options": """
        import argparse
        import torch
        import torch.cuda as gpu
        from torch import cuda, distributed as dist
        from torch.nn.parallel import DistributedDataParallel as Wrapped

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda:0" if cuda.is_available() else "cpu")
        parser.add_argument("--dist-backend", default="nccl")
        parser.add_argument("--local_rank", type=int, default=-1)
        parser.add_argument("--no-cuda", action="store_true")


        def main():
            args = parser.parse_args()
            use_cuda = not args.no_cuda and gpu.is_available()
            gpu.set_device(args.local_rank)
            dist.init_process_group(backend=args.dist_backend)
            device = torch.device("cuda", args.local_rank) if use_cuda else torch.device("cpu")
            loader_options = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
            model = Wrapped(Net().cuda(), device_ids=[args.local_rank])
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            free = cuda.mem_get_info()[0]
            for x, y in torch.utils.data.DataLoader(data, **loader_options):
                x, y = x.cuda(args.local_rank, non_blocking=True), y.to(device)
                optimizer.zero_grad()
                loss = model(x, y)
                loss.backward()
                optimizer.step()
                gpu.synchronize()
            print(free, gpu.max_memory_allocated(), dist.get_backend() == "nccl")


        if __name__ == "__main__":
            main()
    """,
    "spawned": """
        import os
        import torch
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from torch.cuda.amp import GradScaler, autocast


        class Trainer:
            def __init__(self, rank, size, backend="nccl"):
                os.environ["MASTER_ADDR"] = "192.0.2.17"
                dist.init_process_group(backend, rank=rank, world_size=size)
                self.device = f"cuda:{rank}"
                self.config = {"device": "cuda", "backend": "nccl"}
                self.config["device"] = "cuda:%d" % rank
                self.model = Net().to(self.device)
                self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
                self.scaler = GradScaler()
                self.groups = [dist.new_group([i], backend="nccl") for i in range(size)]

            def step(self, batch):
                with autocast(dtype=torch.float16):
                    loss = self.model(batch.to(self.device))
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                return loss.item()


        def worker(rank, size, loader):
            trainer = Trainer(rank, size)
            for batch in loader:
                print(trainer.step(batch))
            print(torch.cuda.get_device_name(rank), torch.cuda.memory_summary())


        if __name__ == "__main__":
            size = torch.cuda.device_count()
            mp.spawn(worker, args=(size, make_loader()), nprocs=size)
    """,
    "typed": """
        import torch
        import torch.nn as nn

        cuda = torch.cuda.is_available()
        Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
        model = nn.Linear(3, 3)
        if cuda:
            model.cuda()
        probe = torch.empty(1).cuda().device
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        move = torch.Tensor.cuda
        for x in loader:
            valid = Tensor(x.size(0), 1).fill_(1.0)
            if x.type() == "torch.cuda.HalfTensor" or x.is_cuda:
                x = x.type(torch.cuda.FloatTensor)
            with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
                y = torch.cuda.LongTensor([0])
            loss = model(x.cuda()).sum()
            loss.backward()
        states = [s.cuda() for s in torch.cuda.get_rng_state_all()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
    """,
}


def run(text: str, target: Target) -> Rewrite:
    options = RewriteOptions(config=Config(target=target))
    return rewrite_source(parse(text.encode(), Path("script.py")), options=options)


def rewritten(text: str, target: Target) -> str:
    return run(text, target).data.decode()


def unaccounted_for(text: str, target: Target) -> list[str]:
    return unaccounted(text, run(text, target).findings)


@pytest.mark.parametrize(("target", "device"), [(XLA, "xla"), (TPU, "tpu")])
@pytest.mark.parametrize("script", TRAINING.values(), ids=TRAINING)
def test_of_training_scripts(script: str, target: Target, device: str) -> None:
    text = rewritten(inspect.cleandoc(script) + "\n", target)
    assert device in text
    assert unaccounted_for(text, target) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("use", ["{}()", "kept = {}", "kept = f({}(3))", "g({})"])
@pytest.mark.parametrize(
    ("top", "spelled"),
    [
        ("import torch", "torch.cuda.{}"),
        ("import torch.cuda as gpu", "gpu.{}"),
        ("from torch import cuda as c", "c.{}"),
        (f"from torch.cuda import {', '.join(f'{n} as {n}_' for n in NAMES)}", "{}_"),
    ],
    ids=["torch", "module", "package", "names"],
)
def test_of_every_name_of_torch_cuda(top: str, spelled: str, use: str, target: Target) -> None:
    text = "\n".join([top, *(use.format(spelled.format(name)) for name in NAMES)]) + "\n"
    assert len(NAMES) > 100
    assert unaccounted_for(rewritten(text, target), target) == []


def test_the_look_itself_finds_what_is_left() -> None:
    text = (
        "from torch import cuda as c\nimport torch\n\nx = torch.ones(3)\nc.synchronize\nx.cuda()\n"
    )
    tree = ast.parse(text)
    found = [n for n in ast.walk(tree) if is_cuda(n, dict(imports_of(tree)), set())]
    assert sorted(ast.unparse(node) for node in found) == ["c.synchronize", "x.cuda()"]


@pytest.mark.parametrize(
    ("question", "is_left"),
    [
        ('getattr(torch.cuda.amp, "autocast") is not None', False),
        ('getattr(torch.cuda.amp, "autocast", None) is None', False),
        ('hasattr(torch.cuda.amp, "autocast")', False),
        ('getattr(torch.cuda.amp, "autocast")', True),
    ],
)
def test_what_only_asks_for_a_name_is_nothing_left(question: str, is_left: bool) -> None:
    text = f"import torch\n\nx = torch.ones(3).cuda()\nhas_amp = {question}\n"
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    assert any(note.rule == "unhandled" for note in done.findings) is is_left
