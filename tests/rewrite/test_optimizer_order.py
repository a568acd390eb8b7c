"""Optimizers that are made before the model moves: when torch's switch is on, and when it is off again."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

ON = "torch.__future__.set_swap_module_params_on_conversion(True)\n"
OFF = ON.replace("True", "False")
HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


"""
MADE = """\
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
"""
HERE = f"""\
def train(rank, state):
{MADE}    model.cuda(rank)
    model = DDP(model, device_ids=[rank])
    # resume
    return model, optimizer


train(0, None)
"""
LOADS = "    model.load_state_dict(state)\n"
APART = f"""\
def build():
{MADE}    return model, optimizer


def train(rank, state):
    model, optimizer = build()
    model.cuda(rank)
    model = DDP(model, device_ids=[rank])
    # resume
    return model, optimizer
"""


def run(script: str) -> Rewrite:
    return rewrite_source(parse((HEAD + script).encode(), Path("script.py")))


def said(done: Rewrite) -> list[str]:
    return [n.message for n in done.findings if n.rule in ("optimizer-order", "XLA805")]


@pytest.mark.parametrize("moved", ["model.cuda(rank)", "model = model.cuda(rank)"])
def test_in_one_function_the_switch_is_on_for_the_move_where_state_dicts_are_loaded(
    moved: str,
) -> None:
    script = HERE.replace("model.cuda(rank)", moved).replace("    # resume\n", LOADS)
    done = run(script)
    move = moved.replace(".cuda(rank)", '.to("xla")')
    assert f"    {ON}    {move}\n    {OFF}    model = DDP(" in done.data.decode()
    assert done.data.decode().count(ON) == done.data.decode().count(OFF) == 1
    assert said(done) == []


def test_the_move_may_stand_in_the_call_of_the_wrapper() -> None:
    script = HERE.replace("    model.cuda(rank)\n", "").replace(
        "DDP(model,", "DDP(model.cuda(rank),"
    )
    done = run(script.replace("    # resume\n", LOADS))
    line = '    model = DDP(model.to("xla"), gradient_as_bucket_view=True)\n'
    assert f"    {ON}{line}    {OFF}" in done.data.decode()


@pytest.mark.parametrize("script", [HERE, APART])
def test_it_stays_on_where_nothing_is_loaded(script: str) -> None:
    done = run(script)
    assert f"    {ON}    optimizer = torch.optim" in done.data.decode()
    assert OFF not in done.data.decode()
    assert said(done) == []


def test_it_goes_off_where_another_function_moves_the_model() -> None:
    done = run(APART.replace("    # resume\n", LOADS))
    assert f"    {ON}    optimizer = torch.optim" in done.data.decode()
    assert f'    model.to("xla")\n    {OFF}' in done.data.decode()
    assert done.data.decode().count(ON) == 1
    assert said(done) == []


def test_a_switch_that_stays_on_is_told() -> None:
    moved_elsewhere = APART.replace("model.cuda(rank)", "prepare(model)").replace(
        "    # resume\n", LOADS + "    torch.zeros(2).cuda(rank)\n"
    )
    done = run(moved_elsewhere)
    assert f"    {ON}    optimizer = torch.optim" in done.data.decode()
    (message,) = said(done)
    assert "stays on from here" in message


def test_a_model_that_never_moves_gets_no_switch() -> None:
    script = """\
def schedule():
    dummy = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(dummy.parameters(), lr=0.1)
    return [group["lr"] for group in optimizer.param_groups]


def train(rank, model):
    return model.cuda(rank)
"""
    assert ON not in run(script).data.decode()


@pytest.mark.parametrize("teacher_first", [False, True])
def test_a_model_that_is_given_and_wrapped_below_its_move_keeps_its_weights(
    teacher_first: bool,
) -> None:
    moves = ["    model = model.cuda(rank)\n", "    if ema:\n        model_ema.cuda(rank)\n"]
    script = "def wrap(model, model_ema, optimizer, rank, ema):\n"
    script += "".join(reversed(moves) if teacher_first else moves)
    done = run(script + "    model = DDP(model, device_ids=[rank])\n    return model, optimizer\n")
    text = done.data.decode()
    assert f'    {ON}    model = model.to("xla")\n' in text
    # One that is not always made leaves the switch to the other.
    assert text.count(ON) == 1 + teacher_first


@pytest.mark.parametrize(
    "use",
    [
        "torch.bucketize(losses['t'].cuda(), edges)",
        "torch.nn.functional.one_hot(losses['t'].to('cuda'))",
        "losses['t'].cuda() * 2",
        "losses['t'].cuda() > 0",
    ],
)
def test_what_is_computed_with_is_no_model(use: str) -> None:
    """The losses come from an object of which nothing is known, which is given the model."""
    script = f"""\
def train(transport, batches, edges):
    model = wrapped(torch.nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x in batches:
        losses = transport.losses(model, x)
        losses["loss"].mean().backward()
        found = {use}
        optimizer.step()


def wrapped(model):
    return DDP(model, device_ids=[0])
"""
    assert ON.strip() not in run(script).data.decode()


EVALUATOR = """\
import torch
from torch import nn


class Net(nn.Linear):
    def parts(self):
        return nn.ModuleDict({{"net": self}})


class Evaluator:
    def __init__(self, cfg):
        self.cfg = cfg
        model = Net(2, 2)
        if cfg.distributed:
            self.model = nn.parallel.DistributedDataParallel({moved})
        else:
            self.model = {moved}

    @property
    def network(self):
        return self.model.module if self.cfg.distributed else self.model
"""
TRAINER = """\
import torch
from torch import nn
from evaluator import Evaluator


class Trainer(Evaluator):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.prepare()

    def prepare(self):
        held = {held}
        params = [p for _, p in held.named_parameters()]
        self.optimizer = torch.optim.AdamW([{{"params": params}}], lr=0.1)

    def train(self, loader):
        for x in loader:
            loss = self.model(x.cuda()).sum()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def main(cfg):
    Trainer(cfg).train([torch.randn(2, 2)])
"""
HELD = [
    "self.network",
    'nn.ModuleDict({"net": self.network})',
    "nn.ModuleList([self.network])",
    "torch.nn.Sequential(self.network)",
    "self.network.parts()",
    "next(m for name, m in self.network.named_modules() if name)",
    "[m for m in self.network.modules()][0]",
]


def reports_of_trainer(folder: Path, held: str, *, moved: str) -> list[str]:
    (folder / "evaluator.py").write_text(EVALUATOR.format(moved=moved))
    (folder / "trainer.py").write_text(TRAINER.format(held=held))
    done = rewrite_folder(folder, options=RewriteOptions(), processes=1)
    return [
        note.message
        for file in done.files
        for note in (*file.findings, *file.edits)
        if note.rule == "optimizer-order"
    ]


@pytest.mark.parametrize("held", HELD)
def test_a_model_that_the_base_class_has_moved_is_silent(tmp_path: Path, held: str) -> None:
    assert reports_of_trainer(tmp_path, held, moved="model.cuda()") == []


@pytest.mark.parametrize("held", HELD)
def test_a_model_that_the_base_class_does_not_move_is_told(tmp_path: Path, held: str) -> None:
    assert reports_of_trainer(tmp_path, held, moved="model")


def test_a_container_with_a_part_that_has_not_moved_is_told(tmp_path: Path) -> None:
    held = "nn.ModuleList([self.network, nn.Linear(2, 2)])"
    assert reports_of_trainer(tmp_path, held, moved="model.cuda()")


def test_to_empty_moves_a_model() -> None:
    script = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
with torch.device("meta"):
    model = torch.nn.Linear(4, 1)
model.to_empty(device="cuda")
torch.nn.init.zeros_(model.weight)
model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
"""
    findings = rewrite_source(parse(script.encode(), Path("script.py"))).findings
    assert {finding.rule for finding in findings} & {"ddp", "optimizer-order"} == set()
    other = script.replace('device="cuda"', 'device="cpu"')
    findings = rewrite_source(parse(other.encode(), Path("script.py"))).findings
    assert "ddp" in {finding.rule for finding in findings}


EMPTY = """
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


def main():
    BUILT
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to_empty(device="cuda")
    model.load_state_dict(torch.load("weights.pt", map_location="cuda"))
    return model, optimizer
"""
ON = "torch.__future__.set_swap_module_params_on_conversion(True)\n"


def emptied(script: str) -> tuple[str, list[str]]:
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    rules = {"optimizer-order", "tied-weights"}
    return done.data.decode(), [note.rule for note in done.findings if note.rule in rules]


def test_to_empty_keeps_shared_weights_and_the_optimizers() -> None:
    after, rules = emptied(EMPTY.replace("BUILT", "model = Net()"))
    assert f'    {ON}    model.to_empty(device="xla")\n' in after
    assert rules == []


@pytest.mark.parametrize(
    "built",
    [
        'with torch.device("meta"):\n        model = Net()',
        'device = torch.device("meta")\n    with device:\n        model = Net()',
        'model = Net().to("meta")',
    ],
)
def test_to_empty_of_a_model_on_meta_loses_them_on_cuda_as_well(built: str) -> None:
    after, rules = emptied(EMPTY.replace("BUILT", built))
    assert ON not in after
    assert rules == ["optimizer-order"]


PARTS = """\
class Critics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.online = torch.nn.Linear(2, 2)


class World(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.critics = Critics()


class Agent:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(self.model.critics.online.parameters(), lr=0.1)

    def update(self, x):
        self.model(x.cuda()).mean().backward()
        self.optimizer.step()


def train(rank, batches):
    model = World()MOVE
    model = DDP(model, device_ids=[rank])
    agent = Agent(model)
    for x in batches:
        agent.update(x)
"""


@pytest.mark.parametrize(("move", "count"), [(".cuda(rank)", 0), ("", 1)])
def test_a_part_of_a_part_has_moved_with_the_whole(move: str, count: int) -> None:
    assert len(said(run(PARTS.replace("MOVE", move)))) == count


FACTORY = """\
import torch


def groups(net):
    return [{"params": [p]} for _, p in net.named_parameters()]


def make_optimizer(net, scale):
    return torch.optim.SGD(groups(net), lr=scale)
"""
PROGRAM = """\
import argparse

import library
import torch
from factory import make_optimizer


def main(args):
    net = MODEL
    scale = 1.0 / net.in_features
    BEFORE
    bare = net
    if args.gpu:
        net = torch.nn.parallel.DistributedDataParallel(net)
        bare = net.module
    optimizer = make_optimizer(bare, scale)
    AFTER
    for x in args.data:
        net(x.to(args.device)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    main(parser.parse_args())
"""


@pytest.mark.parametrize("is_late", [False, True])
def test_programs_that_share_what_makes_the_optimizer(tmp_path: Path, is_late: bool) -> None:
    move = "net.to(args.device)"
    first = PROGRAM.replace("MODEL", "library.Net()").replace("AFTER", "").replace("BEFORE", move)
    second = PROGRAM.replace("MODEL", "torch.nn.Linear(4, 4)")
    second = second.replace("AFTER" if is_late else "BEFORE", move)
    second = second.replace("BEFORE" if is_late else "AFTER", "")
    for name, text in (("factory", FACTORY), ("first", first), ("second", second)):
        (tmp_path / f"{name}.py").write_text(text)
    files = {file.name.stem: file.after.decode() for file in rewrite_folder(tmp_path).files}
    assert "made before" not in files["first"]
    assert ("made before" in files["second"]) is is_late


SHARDED = """\
import torch
from torch.distributed.fsdp import fully_shard


def shard(layers):
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)


def main():
    with torch.device("DEVICE"):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model.to_empty(device="cuda"), optimizer


main()
"""


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fsdp2_moves_a_model_that_is_not_on_meta(device: str) -> None:
    """The optimizer has the parameters that stay; of "meta" they are replaced later, on CUDA as well."""
    options = RewriteOptions(config=Config(target=TPU))
    script = SHARDED.replace("DEVICE", device)
    done = rewrite_source(parse(script.encode(), Path("train.py")), options=options)
    assert "set_swap_module_params_on_conversion" not in done.data.decode()
    notes = [note for note in done.findings if note.rule == "optimizer-order"]
    assert bool(notes) is (device == "meta")
    # What CUDA allows, torch refuses for a device of a library.
    lines = [note.line for note in done.findings if note.rule == "XLA892"]
    assert lines == ([7] if device == "cpu" else [])


SPLIT = """\
def split(net):
    slow, fast = [], {}
    for name, p in net.named_parameters():
        if name == "bias":
            slow.append(p)
        else:
            fast.setdefault(name, []).append(p)
    return [{"params": slow}, *({"params": group} for group in fast.values())]


def build():
    model = torch.nn.Linear(2, 2)
    return model, split(model)


"""
TAKEN_COMMENT = "    # The parameters of the optimizer were collected before"


@pytest.mark.parametrize(
    "collected",
    [
        "model = torch.nn.Linear(2, 2)\n    groups = [p for p in model.parameters() if p.requires_grad]",
        "model = torch.nn.Linear(2, 2)\n    groups = list(filter(bool, model.parameters()))",
        "model = torch.nn.Linear(2, 2)\n    groups = [*model.parameters()]",
        "model = torch.nn.Linear(2, 2)\n    groups = [{'params': [p]} for _, p in model.named_parameters()]",
        "model = torch.nn.Linear(2, 2)\n    groups = []\n    for p in model.parameters():\n"
        "        groups.append({'params': p})",
        "model = torch.nn.Linear(2, 2)\n    groups = split(model)",
        "model, groups = build()",
    ],
)
def test_parameters_that_are_collected_before_the_move_stay_those_of_the_model(
    collected: str,
) -> None:
    body = f"def train():\n    {collected}\n    model = DDP(model.cuda())\n"
    made = "    return model, torch.optim.Adam(groups, lr=0.1)\n"
    text = run(SPLIT + body + made).data.decode()
    assert text.count(ON) == 1
    assert TAKEN_COMMENT in text
    assert text.index(ON) < text.index('model.to("xla")')


@pytest.mark.parametrize(
    "collected",
    [
        "groups = filter(bool, model.parameters())",
        "groups = [{'params': model.parameters()}]",
        "sizes = [p.numel() for p in model.parameters()]\n    groups = model.parameters()",
        "for p in model.parameters():\n        p.requires_grad = True\n    groups = model.parameters()",
    ],
)
def test_a_generator_takes_the_parameters_of_the_moved_model(collected: str) -> None:
    body = f"def train():\n    model = torch.nn.Linear(2, 2)\n    {collected}\n    model = model.cuda()\n"
    done = run(f"{body}    return model, torch.optim.Adam(groups, lr=0.1)\n")
    assert ON not in done.data.decode()
    assert said(done) == []


def test_parameters_collected_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"import torch\n\n\n{SPLIT}")
    body = "def train():\n    model, groups = build()\n    model = DDP(model.cuda())\n"
    made = "    return model, torch.optim.Adam(groups, lr=0.1)\n\n\ntrain()\n"
    (tmp_path / "train.py").write_text(f"from net import build\n{HEAD}{body}{made}")
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    edits = [e.message for f in done.files for e in f.edits if e.rule == "optimizer-order"]
    assert len(edits) == 1


WRAPPED = """
import torch


class Scale(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.model = norm, None

    def wrap(self, model):
        self.model = model
        return self

    def to(self, device):
        {own}
        return self

    def forward(self, x):
        return self.model(x / self.norm)


class Trainer:
    def __init__(self, model, scale, device):
        self.model, self.scale, self.device = model, scale, device

    def train(self, loader, optimizer):
        {model}
        self.scale = self.scale.to(self.device)
        for x in loader:
            optimizer.zero_grad()
            self.scale(x.to(self.device)).mean().backward()
            optimizer.step()


def main(loader):
    model = torch.nn.Linear(4, 4)
    model.load_state_dict(torch.load("start.pt", map_location="cpu"))
    trainer = Trainer(model, Scale(torch.ones(4)).wrap(model), torch.device("cuda"))
    trainer.train(loader, torch.optim.SGD(trainer.model.parameters(), lr=0.1))


main([])
"""
FIRST = "self.model = self.model.to(self.device)"


@pytest.mark.parametrize(
    ("own", "model", "switched"),
    [
        ("self.norm = self.norm.to(device)", FIRST, ["self.model = self.model.to("]),
        ("self.model = self.model.to(device)", "pass", ["self.model = self.model.to("]),
    ],
)
def test_a_method_of_the_project_that_moves_other_things(
    own: str, model: str, switched: list[str]
) -> None:
    text = WRAPPED.replace("{own}", own).replace("{model}", model)
    lines = rewrite_source(parse(text.encode(), Path("s.py"))).data.decode().splitlines()
    at = [i for i, line in enumerate(lines) if "on_conversion(True)" in line]
    assert [lines[i + 1].strip().partition("(")[0] + "(" for i in at] == switched


ENGINES = """\
import deepspeed
import torch


def wrapped(args, model):
    if args.engine == "ddp":
        MOVE
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model


def prepared(args, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.engine == "deepspeed":
        model, optimizer, _, _ = deepspeed.initialize(
            args=args, model=model, optimizer=None, model_parameters=model.parameters()
        )
    return model, optimizer
"""
STARTED = """\
import torch.distributed as dist
from engines import prepared, wrapped
from hyperpyyaml import load_hyperpyyaml


def main(args):
    configs = load_hyperpyyaml(open(args.config))
    dist.init_process_group("nccl")
    model = configs[args.model]
    model = wrapped(args, model)
    model, optimizer = prepared(args, model)
    AFTER
    for x in configs["data"]:
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("trained", ["model", "model.module.head"])
@pytest.mark.parametrize(
    ("move", "after", "is_reported"),
    [("model.cuda()", "pass", False), ("pass", "model.cuda()", True)],
)
def test_what_a_library_may_have_returned_moves_by_cuda(
    tmp_path: Path, move: str, after: str, is_reported: bool, trained: str
) -> None:
    engines = ENGINES.replace("SGD(model.", f"SGD({trained}.")
    (tmp_path / "engines.py").write_text(engines.replace("MOVE", move))
    (tmp_path / "train.py").write_text(STARTED.replace("AFTER", after))
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    notes = [note for file in done.files for note in (*file.findings, *file.edits)]
    assert any(note.rule == "optimizer-order" for note in notes) is is_reported


ENTRIES = """\
import sys

import torch
from rooms import build
from torch import nn


def place(part):
    part.first.cuda()
    part.last.cuda()


FIRST
optimizer = torch.optim.SGD(LAST.parameters(), lr=0.1)
MOVE
"""


@pytest.mark.parametrize(
    ("made", "first", "last", "move"),
    [
        ("build()", 'm["first"].cuda()', 'm["last"]', 'm["last"].cuda()'),
        ('build()["models"]', 'm["first"].cuda()', 'm["last"]', 'm["last"].cuda()'),
        ("build()", "m[0].cuda()", "m[-1]", "m[1].cuda()"),
        ("build()", 'm.get("first").cuda()', 'm.get("last")', 'm["last"].cuda()'),
        ("build()", 'm["first"].cuda()', "m.last", 'm["last"].cuda()'),
        ("build()", "m[sys.argv[1]].cuda()", "m[sys.argv[2]]", "m[sys.argv[2]].cuda()"),
        ("build()", "m.first.cuda()", "m.last", "place(m)"),
        ("nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))", "m[0].cuda()", "m[1]", "m[1].cuda()"),
        ("[nn.Linear(2, 2) for _ in range(2)]", "m[0].cuda()", "m[1]", "m[1].cuda()"),
        ("nn.ModuleDict(build())", 'm["first"].cuda()', 'm["last"]', 'm["last"].cuda()'),
        (
            "dict(first=nn.Linear(2, 2), last=nn.Linear(2, 2))",
            "m[sys.argv[1]].cuda()",
            'm["last"]',
            'm["last"].cuda()',
        ),
    ],
)
def test_a_move_of_one_entry_of_a_container_is_not_that_of_another(
    made: str, first: str, last: str, move: str
) -> None:
    script = ENTRIES.replace("FIRST", f"m = {made}\n{first}").replace("LAST", last)
    done = rewrite_source(parse(script.replace("MOVE", move).encode(), Path("s.py")))
    assert any(note.rule == "optimizer-order" for note in (*done.findings, *done.edits))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ('m["last"].cuda()', 'm["last"]'),
        ("for key in m: m[key].cuda()", 'm["last"]'),
        ("for part in m.values(): part.cuda()", 'm["last"]'),
        ("m.cuda()", 'm["last"]'),
        ("m[sys.argv[1]].cuda()", "m[sys.argv[1]]"),
        ('m["last"].cuda()', "m.last"),
        ("m.last.cuda()", 'm["last"]'),
    ],
)
def test_an_entry_that_has_moved_keeps_its_parameters(first: str, last: str) -> None:
    script = ENTRIES.replace("FIRST", f"m = build()\n{first}").replace("LAST", last)
    done = rewrite_source(parse(script.replace("MOVE", "").encode(), Path("s.py")))
    assert not any(note.rule == "optimizer-order" for note in (*done.findings, *done.edits))


AWAY = """\
import copy

import torch

from helpers import score


class Net(torch.nn.Linear):
    pass


def main(batches, folds):
    device = torch.device("cuda")
    net = Net(2, 2).to(device)
    teacher = Net(2, 2).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(9):
        for x in batches:
            x = x.to(device)
            opt.zero_grad()
            (net(x) - teacher(x)).square().mean().backward()
            opt.step()
        # epoch
    # end


main([], [])
"""
HELPERS = """\
import torch


@torch.no_grad()
def score(net, x):
    net.to(torch.device("cpu"))
    return net(x).mean().item()
"""
NEW = "net.cuda()\n        opt = torch.optim.SGD(net.parameters(), lr=0.1)\n        "


@pytest.mark.parametrize(
    ("epoch", "end", "is_reported"),
    [
        ("net.cpu()\n        net.cuda()", "", True),
        ("torch.save(net.cpu().state_dict(), 'net.pt')\n        net.to(device)", "", True),
        ("net = net.to('cpu')\n        net = net.to(device)", "", True),
        ("score(net, batches[0])\n        net.to(device)", "", True),
        ("copy.deepcopy(net).cpu()\n        net.to(device)", "", False),
        ("teacher.cpu()\n        teacher.to(device)", "", False),
        ("net.to(device)", "torch.save(net.cpu().state_dict(), 'net.pt')", False),
        ("pass", "score(net, batches[0])\n    net.to(device)", False),
        ("net.cpu()\n        " + NEW, "", False),
    ],
)
def test_a_model_that_goes_to_the_cpu_and_comes_back_is_reported(
    epoch: str, end: str, is_reported: bool, tmp_path: Path
) -> None:
    """Nothing trained after the first evaluation on the CPU, without a finding."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    text = AWAY.replace("# epoch", epoch).replace("# end", end)
    (tmp_path / "train.py").write_text(text)
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    notes = [note for file in done.files for note in (*file.findings, *file.edits)]
    messages = [note.message for note in notes if note.rule == "optimizer-order"]
    assert bool(messages) is is_reported
    assert all("makes new parameters" in message for message in messages)


BUILT_BY_METHODS = """\
class Trainer:
    def __init__(self, device):
        self.device = device
        self.net, self.taken = self.make()
        {first}
        {last}

    def make(self):
        net = torch.nn.Linear(4, 2)
        {inside}
        return net, {taken}

    def set_up(self):
        self.opt = torch.optim.SGD({weights}, lr=0.1)

    def train(self, batches):
        for x in batches:
            self.net(x.cuda()).sum().backward()
            self.opt.step()


def main(batches):
    Trainer(torch.device("cuda")).train(batches)


main([])
"""


TAKEN = "[p for p in net.parameters() if p.requires_grad]"


@pytest.mark.parametrize(
    ("first", "last", "inside", "taken", "switches"),
    [
        ("self.set_up()", "self.net.to(device)", "pass", TAKEN, 1),
        ("self.set_up()", "self.net.to(device)", "pass", "", 1),
        ("self.net.to(device)", "self.set_up()", "pass", TAKEN, 1),
        ("self.net.to(device)", "self.set_up()", "pass", "", 0),
        ("self.set_up()", "pass", "net.to(self.device)", "", 0),
    ],
)
def test_the_order_of_the_methods_that_a_constructor_runs_counts(
    first: str, last: str, inside: str, taken: str, switches: int
) -> None:
    weights = "self.taken" if taken else "self.net.parameters()"
    script = BUILT_BY_METHODS.format(
        first=first, last=last, inside=inside, taken=taken or None, weights=weights
    )
    done = run(script)
    assert done.data.decode().count(ON) == switches
    assert not said(done)


def test_parameters_that_a_method_takes_before_its_own_move() -> None:
    script = BUILT_BY_METHODS.format(
        first="self.set_up()",
        last="pass",
        inside="taken = [*net.parameters()]",
        taken="taken",
        weights="self.taken",
    ).replace("        return net", "        net.to(self.device)\n        return net")
    done = run(script)
    assert f"{ON}        net.to(self.device)" in done.data.decode()
    assert not said(done)


HANDED_RATE = """\
import torch


class Constrained(torch.optim.Adam):
    def step(self, closure=None):
        super().step(closure=closure)


class Trainer:
    def __init__(self, width, made_by, lr, device):
        self.net = made_by(width)
        self.net.to("cuda" if device is None else device)
        self.optimizer = Constrained(self.net.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
"""


def test_the_rate_that_an_optimizer_is_given_is_no_optimizer() -> None:
    done = run(HANDED_RATE)
    assert ON not in done.data.decode()
    assert not said(done)


PLACED = """\
import torch
from transformers import AutoModelForCausalLM


def load(name, device_map=None):
    return AutoModelForCausalLM.from_pretrained(name, device_map=device_map)


def main(batches):
    model = load("gpt2", device_map={device})
    optimizer = torch.optim.Adam(model.parameters())
    for ids in batches:
        model(ids.to("cuda")).logits.mean().backward()
        optimizer.step()


main([])
"""


@pytest.mark.parametrize(("device", "notes"), [('torch.device("cuda", 0)', 0), ("None", 1)])
def test_a_model_that_is_loaded_to_the_device_has_moved(device: str, notes: int) -> None:
    text = PLACED.format(device=device)
    done = run(text)
    early = [note for note in done.findings if "its weights never change" in note.message]
    assert len(early) == notes
