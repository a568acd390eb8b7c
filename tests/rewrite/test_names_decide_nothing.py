"""The same script with other names is rewritten and checked the same."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

TRAINS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, loader):
    model.eval()
    losses = []
    with torch.no_grad():
        for batch in loader:
            losses.append(model(batch.cuda()).sum())
    return losses


def train(model, loader, optimizer, scheduler, scaler, group):
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch.cuda()).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        dist.all_reduce(loss, group=group)


def main(dataset):
    dist.init_process_group("nccl")
    group = dist.new_group([0, 1])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, drop_last=True)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cuda")
    model.cuda()
    train(model, loader, optimizer, scheduler, scaler, group)
    evaluate(model, loader)


if __name__ == "__main__":
    main([torch.ones(2)] * 8)
"""
NAMES = ("model", "loader", "optimizer", "scheduler", "scaler", "group", "sampler")
CALLED = [
    ("gpt", "dl", "o", "sc", "s", "g", "sa"),
    ("m", "data", "opt", "lr_s", "amp", "pg", "order"),
    ("f", "xs", "sgd", "plan", "k", "ranks", "q"),
    ("policy", "feed", "solver", "warm", "sc", "h", "v"),
]


def renamed(text: str, names: tuple[str, ...]) -> str:
    for old, new in zip(NAMES, names, strict=True):
        text = re.sub(rf"(?<![\w.]){old}\b(?!=)", new, text)
        text = re.sub(rf"(?<![\w.]){old}=(?={old}|{new})", f"{old}=", text)
    return text


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("names", CALLED)
def test_the_rewrite_is_the_same(names: tuple[str, ...], style: str) -> None:
    options = RewriteOptions(style=style)
    expected = rewrite_source(parse(TRAINS.encode(), Path("train.py")), options=options)
    done = rewrite_source(parse(renamed(TRAINS, names).encode(), Path("train.py")), options=options)
    assert [(n.rule, n.line) for n in done.findings] == [
        (n.rule, n.line) for n in expected.findings
    ]
    same = renamed(expected.data.decode(), names)
    assert shape(done.data.decode()) == shape(same)


def shape(text: str) -> list[str]:
    """Return the lines without the comments: of those some hold a name."""
    return [line for line in text.splitlines() if not line.strip().startswith("#")]


@pytest.mark.parametrize("names", CALLED)
def test_check_says_the_same(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    expected = [(hit.code, hit.line) for hit in findings_of([path], Config())[1]]
    path.write_text(renamed(TRAINS, names))
    assert [(hit.code, hit.line) for hit in findings_of([path], Config())[1]] == expected
    assert "XLA805" in {code for code, _ in expected}


EXAMINES = """
    import torch


    @torch.no_grad()
    def examine(wrapped, pairs):
        sums = []
        for a in pairs:
            sums.append(wrapped(a.cuda()).sum())
        return sums


    G = torch.nn.Linear(3, 3).cuda()
    examine(G, [torch.ones(2, 3)])
"""


@pytest.mark.parametrize("name", ["wrapped", "f", "policy", "model"])
def test_a_loop_that_evaluates_what_callers_pass_gets_a_step(name: str) -> None:
    text = textwrap.dedent(EXAMINES).replace("wrapped", name)
    done = rewrite_source(parse(text.encode(), Path("examine.py")))
    assert "        with torch_xla.step():\n            sums.append(" in done.data.decode()


SCALED = """
    def fit(m, feed, s, o):
        m.cuda()
        for x in feed:
            x = x.cuda()
            s(m(x).mean(), o, parameters=m.parameters(), clip_grad=1.0)
"""


def test_a_scaler_that_trains_is_known_by_what_it_takes() -> None:
    done = rewrite_source(parse(textwrap.dedent(SCALED).encode(), Path("fit.py")))
    assert "with torch_xla.step():" in done.data.decode()


ODD = """
    import torch


    def fit(m, simulated, feed):
        m = m.cuda()
        for x in feed:
            simulated.zero_grad()
            m(x.cuda()).mean().backward()
            simulated.step()
"""


def test_an_optimizer_with_the_name_of_something_else_is_known_by_its_use() -> None:
    done = rewrite_source(parse(textwrap.dedent(ODD).encode(), Path("fit.py")))
    assert "with torch_xla.step():" in done.data.decode()


MOVED_OBJECTS = """
    import torch


    class Gripper:
        SWITCH
        def open(self, scene):
            torch.ones(2).cuda()
            for _ in range(10):
                scene.world.step()
                scene.task.step()
"""


@pytest.mark.parametrize(
    ("switch", "is_reported"),
    [
        ("@torch.no_grad()", False),
        ("@torch.set_grad_enabled(False)", False),
        ("@torch.set_grad_enabled(True)", True),
        ("@torch.enable_grad()", True),
    ],
)
def test_a_file_that_only_switches_gradients_off_runs_no_optimizer(
    switch: str, is_reported: bool
) -> None:
    text = textwrap.dedent(MOVED_OBJECTS).replace("SWITCH", switch)
    done = rewrite_source(parse(text.encode(), Path("scene.py")))
    assert any("optimizer's step" in note.message for note in done.findings) is is_reported


@pytest.mark.parametrize("name", ["checkpoint", "s", "thing"])
def test_a_checkpoint_is_known_by_its_use(name: str, tmp_path: Path) -> None:
    path = tmp_path / "resume.py"
    path.write_text(
        f"import torch\n\n\ndef resume(path, net):\n    {name} = torch.load(path)\n"
        f"    net.load_state_dict({name}['x'])\n    return net.cuda()\n"
    )
    assert "XLA817" in {hit.code for hit in findings_of([path], Config())[1]}


LOADED = """
    import torch


    class Trainer:
        def __init__(self, net):
            self.net = net.cuda()

        DEFINED
            return self.net

        def resume(self, path):
            state = torch.load(path, map_location="cpu")
            return self.NAME(state["model"])
"""


@pytest.mark.parametrize(
    ("defined", "name", "is_reported"),
    [
        ("def make_model(self, spec):", "make_model", False),
        ("def model(self, spec):", "model", False),
        ("@property\n        def model(self):", "model", True),
        ("def other(self, spec):", "model", True),
    ],
)
def test_a_method_that_is_named_as_a_model_is_none(
    tmp_path: Path, defined: str, name: str, is_reported: bool
) -> None:
    path = tmp_path / "resume.py"
    text = LOADED.replace("DEFINED", defined).replace("NAME", name)
    path.write_text(textwrap.dedent(text))
    assert ("XLA830" in {hit.code for hit in findings_of([path], Config())[1]}) is is_reported


EVALUATED = """
import torch

from elsewhere import evaluate_model, validated


def train(loader):
    device = torch.device("cuda")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = evaluate_model(model, x, is_training=True)
        out = validated(out)
        # here
        loss = (out - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("is_evaluation", [False, True])
def test_what_the_loss_is_computed_from_is_no_evaluation(is_evaluation: bool) -> None:
    """The step had no block: "an evaluation lies in the middle"."""
    here = "score = evaluate_model(model, x)" if is_evaluation else "pass"
    source = parse(EVALUATED.replace("# here", here).encode(), Path("train.py"))
    done = rewrite_source(source)
    assert (b"with torch_xla.step():" in done.data) is not is_evaluation
    assert bool([n for n in done.findings if "an evaluation" in n.message]) is is_evaluation
