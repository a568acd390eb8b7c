"""What stays after a rewrite and fails on a TPU is reported at its line, however it is spelled."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

IMPORTS = "import torch\nimport torch.distributed as dist\n"


def reported(script: str, code: str, imports: str = IMPORTS) -> list[int]:
    """Return the lines of a script below `imports` that `code` is reported at."""
    text = imports + textwrap.dedent(script).strip() + "\n"
    findings = check_source(parse(text.encode(), Path("script.py")), Config(select=(code,)))
    return [finding.line - imports.count("\n") for finding in findings]


def marked(script: str) -> list[int]:
    lines = textwrap.dedent(script).strip().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# here")]


OWNERS = {
    "test-in-class": """
        import os
        import torch, torch.distributed as dist

        class Muon(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, dict(lr=lr))
                self.size = int(os.environ["WORLD_SIZE"])
                self.me = int(os.environ["RANK"])

            def step(self):
                for group in self.param_groups:
                    for i, p in enumerate(group["params"]):
                        if i % self.size == self.me:  # here
                            p.update = p.grad @ p.grad.T
                    dist.all_reduce(group["flat"])
        """,
    "padded-lists": """
        def step(self):
            for group in self.param_groups:
                params = group["params"]
                padded = params + [torch.empty_like(params[-1])] * dist.get_world_size()
                for base in range(len(params))[:: dist.get_world_size()]:
                    if base + dist.get_rank() < len(params):
                        p = params[base + dist.get_rank()]  # here
                        update(p)
                    dist.all_gather(
                        padded[base : base + dist.get_world_size()],
                        padded[base + dist.get_rank()],  # here
                    )
        """,
    "named-parameters": """
        def step(net, rank, world):
            named = sorted(net.named_parameters())
            for name, p in named[rank::world]:  # here
                update(p)
            for i, (name, p) in enumerate(named):
                dist.broadcast(p, src=i % world)
        """,
    "mine-by-loop": """
        def step(net, rank, world):
            weights = list(net.parameters())
            for k in range(rank, len(weights), world):
                w = weights[k]  # here
                update(w)
            dist.all_reduce(weights[0])
        """,
    "owner-first": """
        def step(net, owners):
            rank = dist.get_rank()
            for p, owner in zip(net.parameters(), owners):
                if rank != owner:  # here
                    continue
                update(p)
            dist.barrier()
        """,
    "zero-by-hand": """
        def main(model, world):
            rank = dist.get_rank()
            mine = [p for i, p in enumerate(model.parameters()) if i % world == rank]  # here
            optimizer = torch.optim.AdamW(mine)
            for i, p in enumerate(model.parameters()):
                dist.broadcast(p.data, i % world)
        """,
    "flat-shard": """
        def step(model, n):
            rank = dist.get_rank()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            shard = flat[rank * n : (rank + 1) * n]  # here
            dist.all_gather_into_tensor(flat, shard)
        """,
    "sync-at-times": """
        import torch, torch_xla, torch.distributed as dist

        def step(model, flat, rank, world):
            for i, p in enumerate(model.parameters()):
                if i % 10 == 0:
                    torch_xla.sync()
                if i % world == rank:  # here
                    flat[i] = p.grad @ p.grad.T
                if i % 10 == 0:
                    torch_xla.sync()
            dist.all_reduce(flat)
        """,
    "sync-of-a-function": """
        import torch, torch_xla, torch.distributed as dist

        def step(model, flat, rank, world):
            for i, p in enumerate(model.parameters()):
                torch_xla.sync()
                if i % world == rank:  # here
                    flat[i] = p.grad @ p.grad.T
                def end():
                    torch_xla.sync()
            dist.all_reduce(flat)
        """,
    "base-class-elsewhere": """
        import torch.distributed as dist
        from mine import ShardedOptimizer

        class Shampoo(ShardedOptimizer):
            def step(self):
                for group in self.param_groups:
                    for index, p in enumerate(group["params"]):
                        owner = index % dist.get_world_size()
                        if owner == dist.get_rank():  # here
                            update(p)
        """,
}
NO_OWNERS = {
    "data": """
        def main(files, rows, rank, world, model):
            mine = files[rank::world]
            for i, row in enumerate(rows):
                if i % world == rank:
                    model(row)
            dist.all_reduce(model.loss)
        """,
    "first-replica": """
        def main(model, rank):
            for name, p in model.named_parameters():
                if rank == 0:
                    print(name, p.shape)
                dist.broadcast(p.data, src=0)
        """,
    "low-rank": """
        class LowRank(torch.optim.Optimizer):
            def step(self):
                for group in self.param_groups:
                    rank = group["rank"]
                    for p in group["params"]:
                        u, s, v = torch.linalg.svd(p.grad)
                        p.add_(u[:, :rank] @ v[:rank])
                        dist.all_reduce(p)
        """,
}


@pytest.mark.parametrize("script", OWNERS.values(), ids=OWNERS)
def test_each_way_to_give_parameters_an_owner_is_reported(script: str) -> None:
    assert reported(script, "XLA310") == marked(script) != []


@pytest.mark.parametrize("script", NO_OWNERS.values(), ids=NO_OWNERS)
def test_what_gives_no_parameter_an_owner_is_not(script: str) -> None:
    assert reported(script, "XLA310") == []


def test_a_script_of_one_process_gives_no_owners() -> None:
    script = "def step(net, rank, world):\n    return list(net.parameters())[rank::world]"
    assert reported(script, "XLA310", imports="") == []


@pytest.mark.parametrize(
    "script",
    [
        """
        def stop(flag, device):
            t = torch.as_tensor([int(flag)], device=device)
            dist.all_reduce(t, dist.ReduceOp.MAX)  # here
        """,
        """
        import torch, torch.distributed as dist
        from torch.distributed import ReduceOp, all_reduce

        class Counter:
            def __init__(self):
                self.count = torch.zeros(1, dtype=torch.long).cuda()

            def sync(self):
                all_reduce(self.count, op=ReduceOp.MIN)  # here
        """,
        """
        def agree(value, op):
            dist.all_reduce(value, op=dist.ReduceOp.PRODUCT)  # here

        def main(rows, device):
            n = len(rows)
            agree(value=torch.tensor(n, device=device), op=1)
        """,
        """
        def best(scores):
            dist.reduce(scores.argmax(1), 0, op=dist.ReduceOp.MAX)  # here
            dist.reduce_scatter_tensor(scores, scores.double(), op=dist.ReduceOp.MAX)  # here
        """,
    ],
)
def test_a_reduction_of_64_bits_is_reported_by_what_made_the_tensor(script: str) -> None:
    assert reported(script, "XLA829") == marked(script) != []


@pytest.mark.parametrize(
    "line",
    [
        "t = torch.tensor(1.5, device=device)",
        "t = torch.tensor(flag, device=device)",
        "t = torch.tensor(flag > 2, device=device)",
        "t = torch.tensor(1, dtype=torch.int32, device=device)",
        "t = torch.tensor(1, device=device).float()",
        "t = torch.tensor(1, device=device).to(torch.int32)",
        "t = torch.zeros(1, device=device)",
        "t = torch.tensor(len(flag) / 2, device=device)",
        "t = torch.cuda.IntTensor([1])",
    ],
)
def test_a_reduction_of_32_bits_or_of_what_is_not_known_is_not(line: str) -> None:
    script = f"""
    def stop(flag, device):
        {line}
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
    """
    assert reported(script, "XLA829") == []


STATES = {
    "isinstance": """
        def load(optim, path):
            optim.load_state_dict(torch.load(path))
            for s in optim.state.values():
                for k, v in s.items():
                    if isinstance(v, torch.Tensor):
                        s[k] = v.cuda()  # here
        """,
    "data": """
        def optimizer_to(optim, device):
            for param in optim.state.values():
                if isinstance(param, torch.Tensor):
                    param.data = param.data.to(device)
                elif isinstance(param, dict):
                    for sub in param.values():
                        if isinstance(sub, torch.Tensor):
                            sub.data = sub.data.to(device)  # here
        """,
    "items": """
        def move(o, device):
            for p, entry in o.state.items():
                o.state[p] = {k: v.to(device) for k, v in entry.items()}  # here
        """,
    "choice-by-type": """
        def move(o, device):
            for p in o.state:
                slots = o.state[p]
                for name in list(slots.keys()):
                    slots[name] = slots[name].to(device, non_blocking=True)  # here
        """,
    "state-dict": """
        def move(saved, gpu):
            for entry in saved["optimizer"]["state"].values():
                for key, value in entry.items():
                    entry[key] = value.cuda(gpu) if hasattr(value, "cuda") else value  # here
        """,
}


@pytest.mark.parametrize("script", STATES.values(), ids=STATES)
def test_a_loop_that_moves_the_whole_state_is_reported(script: str) -> None:
    assert reported(script, "XLA209") == marked(script) != []


@pytest.mark.parametrize(
    "test",
    [
        'k != "step"',
        'k in ("exp_avg", "exp_avg_sq")',
        "v.dim() > 0",
        'torch.is_tensor(v) and not k == "step"',
    ],
)
def test_a_loop_that_leaves_the_step_is_not(test: str) -> None:
    script = f"""
    def load(optim, device):
        for s in optim.state.values():
            for k, v in s.items():
                if {test}:
                    s[k] = v.to(device)
    """
    assert reported(script, "XLA209") == []


LOADS = {
    "closure": """
        import torch, torch.nn as nn

        def main(path):
            bank = torch.load(path, map_location="cpu")["bank"].float()
            x = torch.randn(3).to("xla")
            return torch.cat([x, bank])  # here
        """,
    "attribute": """
        import torch, torch.nn.functional as F

        class Trainer:
            def __init__(self, path):
                blob = torch.load(path, map_location="cpu")
                self.centers = blob.get("centers")

            def loss(self, x):
                x = x.to("xla")
                return F.mse_loss(x, self.centers)  # here
        """,
    "assigned": """
        def resume(net, path):
            net = net.to("xla")
            blob = torch.load(path, "cpu")
            net.load_state_dict({k.lower(): v for k, v in blob.items()}, strict=False, assign=True)  # here
            net.head.weight = torch.nn.Parameter(blob["head"])  # here
            for name, p in net.named_parameters():
                p.data = blob[name]  # here
        """,
    "passed": """
        def distance(x, mean):
            x = x.to("xla")
            return torch.maximum(x, mean)  # here

        def main(x, path):
            return distance(x, torch.load(path, map_location="cpu")["mean"])
        """,
    "pair": """
        def read(path, wanted):
            weights = torch.load(path, map_location="cpu")
            more = None
            if wanted:
                more = torch.load(path + ".more", map_location="cpu")
            return {"epoch": 1}, weights, more

        def build(net, path):
            meta, weights, more = read(path, True)
            net.to_empty(device="xla")
            weights = {k.removeprefix("x."): v for k, v in weights.items()}
            net.load_state_dict(weights, strict=True, assign=True)  # here
            net.load_state_dict(meta, assign=True)
        """,
    "method": """
        def main(path, x):
            ema = torch.load(path, map_location="cpu")["ema"]
            x = x.to("xla")
            ema.add_(x)
            ema.lerp_(x, 0.1)  # here
        """,
    "url": """
        def main(url, x):
            table = torch.hub.load_state_dict_from_url(url, map_location="cpu")["table"]
            x = x.to("xla")
            return table[x]  # here
        """,
}
FINE = {
    "moved": """
        def main(path, x):
            table = torch.load(path, map_location="cpu")["table"]
            table = table.to("xla")
            x = x.to("xla")
            return table[x]
        """,
    "whole-module": """
        def export(path, x):
            model = torch.load(path, map_location="cpu", weights_only=False)
            model.to("xla")
            x = x.to("xla")
            torch.onnx.export(model, x, "out.onnx")
            return model(x)
        """,
    "host-data": """
        def rows(path):
            data = torch.load(path, map_location="cpu")
            order = torch.randperm(len(data))
            return data[order]
        """,
    "module-first": """
        def build(net, path):
            net.load_state_dict(torch.load(path, map_location="cpu"), assign=True)
            net.to("xla")
            return torch.optim.SGD(net.parameters(), 0.1)
        """,
    "parameter-in-module": """
        class Net(torch.nn.Module):
            def __init__(self, path):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.load(path, map_location="cpu"))

            def forward(self, x):
                return torch.maximum(x, self.weight)
        """,
}


@pytest.mark.parametrize("script", LOADS.values(), ids=LOADS)
def test_a_loaded_tensor_that_meets_the_device_is_reported(script: str) -> None:
    assert reported(script, "XLA830") == marked(script) != []


@pytest.mark.parametrize("script", FINE.values(), ids=FINE)
def test_a_loaded_tensor_that_is_moved_or_stays_on_the_host_is_not(script: str) -> None:
    assert reported(script, "XLA830") == []


PARTIAL = """
import torch


def load_weights(model, path):
    weights = torch.load(path, map_location="cpu")
    state = model.state_dict()
    weights = {{k: v for k, v in weights.items() if k in state}}
    {fill}
    model.load_state_dict(state{more})


def main():
    model = torch.nn.Linear(4, 4).to("xla")
    load_weights(model, "weights.pt")
    print(model(torch.ones(1, 4).to("xla")).sum().item())
"""
FILLED = (
    "state.update(weights)",
    "state.update({k: v for k, v in weights.items()})",
    "state.setdefault('bias', weights['bias'])",
    "state['bias'] = weights['bias']",
)


@pytest.mark.parametrize("fill", FILLED)
def test_a_state_that_is_filled_from_a_checkpoint(fill: str) -> None:
    assert reported(PARTIAL.format(fill=fill, more=""), "XLA830") == []


def test_a_state_filled_from_a_checkpoint_that_becomes_the_parameters() -> None:
    script = PARTIAL.format(fill="state.update(weights)", more=", assign=True")
    assert len(reported(script, "XLA830")) == 1
