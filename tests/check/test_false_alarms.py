"""Reads that are in no training step: generation, evaluation, saves, numbers of the host."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.check.finding import Finding
from migrate.check.project import check_paths
from migrate.syntax.source import parse

HEAD = "import torch\nfrom torch import nn\n"
SCRIPTS = {
    "the number with which a loop over what a method yields counts": """
        from logs import Log


        def train(net, optimizer, loader, warm):
            for cur_iter, x in Log().watch(loader, 3):
                x = x.cuda()
                done = cur_iter - warm
                rate = 0 if done < 0 else min(1.0, done / 3)
                loss = net(x).mean() * rate
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """,
    "post-processing that nothing is learned from": """
        class PostProcess(nn.Module):
            @torch.no_grad()
            def forward(self, results, outputs, max_target_sizes):
                max_h, max_w = max_target_sizes.max(0)[0].tolist()
                return outputs["masks"].cpu(), max_h, max_w
    """,
    "a number behind a starred shape, and what a choice of other calls gives": """
        def default(value, other):
            return value if value is not None else other


        class Memory(nn.Module):
            def __init__(self, count=None):
                super().__init__()
                self.count = default(count, 0)
                self.layer = nn.Linear(4, 4)

            def forward(self, x, context=None):
                b, n, device, count = *x.shape, x.device, self.count
                x = self.layer(default(context, x))
                if count > 0:
                    x = torch.cat((x[:, :count], x), dim=1)
                return x[:, :n], device, b


        def train(loader):
            model = Memory().cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                loss = model(x.cuda())[0].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """,
    "samples that a module moves to its own device": """
        class Diffusion(nn.Module):
            def __init__(self, device):
                super().__init__()
                self.device = device
                self.net = nn.Linear(4, 4).to(device)
                self.scale = 2.0

            def decode(self, z, quantize=False):
                z = 1.0 / self.scale * z
                return self.net(z)

            def rows(self, samples):
                return [self.decode(z.to(self.device)) for z in samples]

            def configure_optimizers(self):
                return torch.optim.AdamW(list(self.net.parameters()), lr=0.1)
    """,
    "names of what a model returns": """
        class Distill(nn.Module):
            def forward(self, batch):
                out = self.student(batch)
                out.update({f"dist_{k}": v for k, v in self.teacher(batch).items()})
                return out
    """,
    "what an object of a library gives, whose methods are named as a tensor's": """
        import os

        from pytorch_lightning.lite import LightningLite


        class Lite(LightningLite):
            def run(self, args):
                model = nn.Linear(4, 4).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                steps = 0
                if args.path:
                    steps = self.load(os.path.join(args.path, "last.pth"))["steps"]
                for batch in args.loader:
                    loss = model(batch.cuda()).sum()
                    if steps % args.save_freq == 0:
                        print("save")
                    optimizer.zero_grad()
                    self.backward(loss)
                    optimizer.step()
                    steps += 1
    """,
    "the settings of an optimizer's groups": """
        def anneal(optimizer, rate):
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("lr_scale", 1)
                if group["weight_decay"] > 0:
                    group["weight_decay"] = rate


        def train(model, loader, optimizer):
            model.cuda()
            for step, x in enumerate(loader):
                x = x.cuda()
                anneal(optimizer, 1 / (step + 1))
                loss = model(x).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """,
    "the sizes of images": """
        class Padded(nn.Module):
            def forward(self, images):
                return self.mask(images.tensor, images.image_sizes)

            def mask(self, x, image_sizes):
                for i, (h, w) in enumerate(image_sizes):
                    x[i, : int(float(h) / 2), : int(float(w) / 2)] = 0
                return x


        class Jpeg(nn.Module):
            def forward(self, y, imgh, imgw):
                return y[:, : int(imgh / 2), : int(imgw / 2)]
    """,
    "a cache of what was generated": """
        class KVCache(nn.Module):
            def get_pos(self):
                return self.seen[0].item()

            def forward(self, input_pos, k):
                return k[: input_pos.max().item()]


        class Attention(nn.Module):
            def forward(self, x, kv_cache=None):
                start = 0 if kv_cache is None else kv_cache.get_pos()
                return self.kv_cache(start, x)
    """,
    "an evaluation and a save between steps": """
        class Recipe:
            def validate(self):
                total = torch.zeros(1, device="cuda")
                torch.distributed.all_reduce(total)
                return (total / 2).item()

            def save_checkpoint(self, model):
                return {k: v.cpu() for k, v in model.state_dict().items()}

            def train(self, model, loader, optimizer):
                model.cuda()
                for i, x in enumerate(loader):
                    loss = model(x.cuda()).mean()
                    loss.backward()
                    if i % 4 == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                        if i % 8 == 0:
                            self.save_checkpoint(model)
                            self.validate()
    """,
}


def found(folder: Path, source: str) -> list[Finding]:
    """Return the reads that are reported of a script."""
    path = folder / "script.py"
    path.write_text(HEAD + textwrap.dedent(source))
    return [one for one in check_file(path, Config()) if one.code.startswith("XLA2")]


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_nothing_is_said(tmp_path: Path, source: str) -> None:
    assert not [one for one in found(tmp_path, source) if one.severity.value != "info"]


def test_what_a_loss_reads_is_still_said(tmp_path: Path) -> None:
    source = """
        class Matcher(nn.Module):
            @torch.no_grad()
            def forward(self, cost):
                return cost.cpu()


        class Criterion(nn.Module):
            def __init__(self):
                super().__init__()
                self.matcher = Matcher()

            def forward(self, outputs):
                return self.matcher(outputs.exp())
    """
    assert [one.code for one in found(tmp_path, source)] == ["XLA203"]


SIZES = """\
import torch


def cut(x, y, size=4):
    def checked(x, dim):
        if not isinstance(x, list):
            x, dim = [x], [dim]
        n = SIZE
        return x, dim, n, len(x)

    x, dim, n, count = checked(x, 1)
    y, _, other, _ = checked(y, 1)
    assert n == other
    pad = -n % size
    x = [torch.nn.functional.pad(x[i], (0, pad)) for i in range(count)]
    if pad > 0:
        x = [each[:, :-pad] for each in x]
    return x[0] * y[0][:, :n]


class Net(torch.nn.Module):
    def forward(self, x):
        return cut(x, x)
"""


@pytest.mark.parametrize(
    ("size", "reported"),
    [
        ("x[0].size(dim[0])", False),
        ("x[0].shape[1]", False),
        ("len(x[0])", False),
        ("int(x[0].max().item())", True),
        ("x[0].max()", True),
    ],
)
def test_sizes_that_a_function_returns_with_a_tensor(size: str, reported: bool) -> None:
    source = parse(SIZES.replace("SIZE", size).encode(), Path("net.py"))
    found = {f.code for f in check_source(source, Config()) if f.code in ("XLA107", "XLA110")}
    assert bool(found) is reported


MEASURE = """
import torch
import torch.distributed as dist


@torch.no_grad()
def {name}(model, loader, device):
    total = torch.tensor(0.0).to(device)
    for x in loader:
        total += model(x.to(device)).mean()
    parts = [torch.zeros_like(total) for _ in range(2)]
    dist.all_gather(parts, total)
    total = sum([part.item() for part in parts]) / 2
    return total, 1
"""
TRAIN = """
import math

import torch
import torch.distributed as dist
import wandb
from tools.measure import *


def main(args):
    loader, device = args.loader, args.device
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for x in loader:
        loss = model(x.to(device)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % args.every == 0:
            total, tokens = {name}(model, args.valid, device)
            if rank == 0:
                wandb.log({{"loss": total, "perplexity": math.exp(total)}})


main(None)
"""


@pytest.mark.parametrize("name", ["evaluate_model", "test_model", "run_net"])
def test_a_function_of_another_file_is_no_model_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "measure.py").write_text(MEASURE.format(name=name))
    (tmp_path / "train.py").write_text(TRAIN.format(name=name))
    found = check_paths([tmp_path], Config()).findings
    assert [one for one in found if one.code == "XLA305"] == []


PARTS = """
import itertools
from itertools import accumulate, chain, pairwise, zip_longest

import torch


def bounds(sizes):
    return pairwise(accumulate(chain([0], sizes)))


class Net(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def forward(self, x, lengths):
        parts = list(x.split(2))
        for part, (start, end) in OVER:
            x = x[:, start:end] + part
        return x
"""


@pytest.mark.parametrize(
    ("over", "reported"),
    [
        ("zip(parts, bounds(self.sizes))", False),
        ("zip(parts, bounds(self.sizes), strict=True)", False),
        ("zip(parts, pairwise(accumulate(self.sizes)), strict=True)", False),
        ("itertools.zip_longest(parts, bounds(self.sizes), fillvalue=None)", False),
        ("zip(parts, pairwise(lengths.cumsum(0)), strict=True)", True),
        ("zip(parts, pairwise(lengths.cumsum(0)))", True),
    ],
)
def test_what_a_strict_zip_goes_over_is_apart(over: str, reported: bool) -> None:
    source = parse(PARTS.replace("OVER", over).encode(), Path("net.py"))
    found = {one.code for one in check_source(source, Config())}
    assert ("XLA107" in found) is reported


def test_each_name_of_a_zip_of_a_list_is_bound() -> None:
    text = PARTS.replace("for part, (start, end) in OVER:", "for end in zip(*[lengths.cumsum(0)]):")
    text = text.replace("x[:, start:end] + part", "x[:, :end]")
    found = {one.code for one in check_source(parse(text.encode(), Path("net.py")), Config())}
    assert "XLA107" in found


NUMBERED = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm


def train(net, loader, opt, every, first):
    net = DDP(net.cuda())
    {before}
        for data_iter_step, (x, y) in {over}:
            loss = net(x.cuda()).mean()
            if (data_iter_step + 1) % every == 0:
                opt.zero_grad()
            loss.backward()
            opt.step()
"""


@pytest.mark.parametrize(
    ("before", "over"),
    [
        ("if first:", "tqdm(enumerate(loader), total=3)"),
        ("with tqdm(enumerate(loader)) as shown:", "shown"),
        ("shown = enumerate(loader)\n    if first:", "shown"),
        ("shown = enumerate(loader)\n    shown = tqdm(shown)\n    if first:", "shown"),
        ("shown = tqdm(loader)\n    if first:", "enumerate(shown)"),
    ],
)
def test_the_number_of_a_turn_is_no_tensor_whatever_shows_progress(before: str, over: str) -> None:
    text = NUMBERED.format(before=before, over=over)
    codes = {f.code for f in check_source(parse(text.encode(), Path("train.py")), Config())}
    assert not codes & {"XLA107", "XLA110"}
    read = text.replace("(data_iter_step + 1) % every == 0", "x.sum() > 3")
    assert "XLA110" in {
        f.code for f in check_source(parse(read.encode(), Path("train.py")), Config())
    }


NORMS = """
import torch


def norm_of(parameters):
    parameters = {kept}
    total = 0
    for p in parameters:
        total += p.grad.data.norm(2.0).item() ** 2
    return total**0.5


def train(net, loader):
    net = net.cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        net(x.cuda()).mean().backward()
        norm = norm_of(net.parameters())
        opt.step()
"""


@pytest.mark.parametrize(
    "kept",
    [
        "[p for p in parameters if p.grad is not None]",
        "filter(lambda p: p.grad is not None, parameters)",
        "list(filter(lambda p: p.grad is not None, parameters))",
        "tuple(filter(has_gradient, parameters))",
    ],
)
def test_parameters_that_are_filtered_stay_parameters(kept: str) -> None:
    source = parse(NORMS.format(kept=kept).encode(), Path("train.py"))
    assert "XLA201" in {f.code for f in check_source(source, Config())}


def test_what_describes_a_distributed_tensor_is_no_value() -> None:
    text = HEAD + textwrap.dedent(
        """
        class Own(torch.optim.Optimizer):
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        g = p.grad.clone()
                        if p.device_mesh.get_group(0) != self.group:
                            raise ValueError
                        if g.placements == p.placements:
                            p.sub_(g)
                        if g.sum() == 0:
                            break
        """
    )
    found = check_source(parse(text.encode(), Path("own.py")), Config(select=("XLA110",)))
    assert [text.splitlines()[f.line - 1].strip() for f in found] == ["if g.sum() == 0:"]
