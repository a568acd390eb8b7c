"""Saves under a condition that each replica decides by a value of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rules.saving.saving import DECIDES_ALONE, MAKES_SAME, MAY_DIFFER
from migrate.syntax.source import parse

HEAD = """
import helpers
import timm
import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torchmetrics


def judge(model, loader):
    right = total = 0
    for x, y in loader:
        right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
        total += y.numel()
    return right / total


def judge_all(model, loader):
    counts = torch.zeros(2, device="cuda")
    for x, y in loader:
        counts[0] += (model(x.cuda()).argmax(1) == y.cuda()).sum()
        counts[1] += y.numel()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def mean_of(t):
    t = t.clone()
    dist.all_reduce(t)
    return t / dist.get_world_size()


class Stopper:
    def __init__(self):
        self.top = 0.0

    def step(self, value):
        if value > self.top:
            self.top = value
            return True
        return False


def train(model, loader, held_out, optimizer, rank, args):
    model.cuda()
    top, high, stopper = 0.0, 0.0, Stopper()
    for epoch in range(9):
        for x in loader:
            e = model(x.cuda()).mean()
            e.backward()
            optimizer.step()
"""


def saves(body: str, portable: bool = False) -> tuple[str, list[str]]:
    """Return the rewritten loop with the statements `body`, and what is reported of its saves."""
    text = HEAD + textwrap.indent(textwrap.dedent(body).strip(), " " * 8) + "\n"
    options = RewriteOptions(style="portable") if portable else RewriteOptions()
    done = rewrite_source(parse(text.encode(), Path("script.py")), options=options)
    return done.data.decode(), [f.message for f in done.findings if f.rule == "save"]


SAVE = "torch.save(model.state_dict(), 'x.pt')"
OWN = {
    "accuracy": f"q = judge(model, held_out)\nif q > top:\n    top = q\n    {SAVE}",
    "nested": f"q = judge(model, held_out)\nif epoch > 2:\n    if q > top:\n        {SAVE}",
    "outer": f"q = judge(model, held_out)\nif q > top:\n    if rank == 0:\n        {SAVE}",
    "else": f"q = judge(model, held_out)\nif q <= top:\n    pass\nelse:\n    {SAVE}",
    "skip": f"q = judge(model, held_out)\nif q <= top:\n    continue\n{SAVE}",
    "flag": f"q = judge(model, held_out)\nbetter = q > top\nif better:\n    {SAVE}",
    "set": f"b = False\nif judge(model, held_out) > top:\n    b = True\nif b:\n    {SAVE}",
    "max": f"q = judge(model, held_out)\nhigh = max(q, high)\nif q == high:\n    {SAVE}",
    "nan": f"if torch.isnan(e):\n    {SAVE}",
    "item": f"q = e.item()\nif q != q:\n    {SAVE}",
    "stopper": f"if stopper.step(judge(model, held_out)):\n    {SAVE}",
    "attribute": (f"args.top = judge(model, held_out)\nif args.top > high:\n    {SAVE}"),
    "own file": (
        "q = judge(model, held_out)\nif q > top:\n    torch.save(model.state_dict(), f'{rank}.pt')"
    ),
    "entry": (
        f"state = dict(step=0, q=0.0)\nstate['q'] = e.item()\nif state['q'] > top:\n    {SAVE}"
    ),
    "gradients": f"q = torch.autograd.grad(e, x)[0].mean().item()\nif q > top:\n    {SAVE}",
    "list": f"qs = []\nqs.append(e.item())\nif min(qs) < 0.1:\n    {SAVE}",
}
SAME = {
    "all reduced": f"q = judge_all(model, held_out)\nif q > top:\n    top = q\n    {SAVE}",
    "in place": f"q = e.detach()\ndist.all_reduce(q)\nif q.item() > top:\n    {SAVE}",
    "function": f"q = mean_of(e)\nif q.item() > top:\n    {SAVE}",
    "xm": f"q = xm.mesh_reduce('q', e.item(), min)\nif q > top:\n    {SAVE}",
    "gathered": (
        "qs = [None] * dist.get_world_size()\ndist.all_gather_object(qs, e.item())\n"
        f"if min(qs) > top:\n    {SAVE}"
    ),
    "stopper": f"if stopper.step(judge_all(model, held_out)):\n    {SAVE}",
    "epoch": f"if epoch % 10 == 9:\n    {SAVE}",
    "setting": f"val_only = args.get('val_only', False)\nif not val_only:\n    {SAVE}",
    "evaluations": f"light_eval_only_mode = args.modes['light']\nif not light_eval_only_mode:\n    {SAVE}",
    "option": f"if args.keep and epoch > args.warm_up:\n    {SAVE}",
    "norm": (
        "n = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        f"if n.item() < 0.1:\n    {SAVE}"
    ),
    "entry of a dictionary": (
        f"state = dict(e=e, step=0)\nstep = state['step']\nstate['step'] += 1\n"
        f"if step != state['step']:\n    {SAVE}"
    ),
    "weights": f"q = sum(p.norm().item() for p in model.parameters())\nif q > top:\n    {SAVE}",
    "a list of weights": (
        "ws = [p for p in model.parameters() if p.dim() > 1]\n"
        f"q = ws[0].norm().item()\nif q > top:\n    {SAVE}"
    ),
    "always": SAVE,
    "library": (
        f"m = torchmetrics.MeanMetric()\nm.update(e.item())\nif m.compute() > top:\n    {SAVE}"
    ),
    "function of a library": f"q = timm.utils.reduce_tensor(e, 2).item()\nif q > top:\n    {SAVE}",
}
# What is not followed, and would make a value the same on all replicas by its name.
UNFOLLOWED = {
    "function": f"q = helpers.gather_mean(e).item()\nif q > top:\n    {SAVE}",
    "method": f"m = helpers.Meter()\nm.update(e.item())\nif m.compute() > top:\n    {SAVE}",
    "in place": f"q = e.detach()\nhelpers.reduce(q)\nif q.item() > top:\n    {SAVE}",
    "object": (
        f"m = helpers.Meter()\nm.update(e.item())\nm.sync()\nif m.average > top:\n    {SAVE}"
    ),
}


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
@pytest.mark.parametrize("body", OWN.values(), ids=OWN)
def test_a_value_of_each_replica_is_reported(body: str, portable: bool) -> None:
    text, messages = saves(body, portable)
    assert "torch.save(" in text
    assert [MAY_DIFFER in message for message in messages] == [True]


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_a_value_that_is_the_same_on_all_is_none(body: str, portable: bool) -> None:
    text, messages = saves(body, portable)
    assert messages == []
    assert "torch.save(" not in text


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
@pytest.mark.parametrize("body", UNFOLLOWED.values(), ids=UNFOLLOWED)
def test_what_only_a_name_makes_the_same_is_reported(body: str, portable: bool) -> None:
    text, messages = saves(body, portable)
    assert "torch.save(" in text
    assert [MAKES_SAME in message for message in messages] == [True]


def test_one_process_alone_has_nobody_to_differ_from() -> None:
    script = """
    import torch


    def train(model, loader, held_out, best):
        model.cuda()
        if (loss := judge(model, held_out)) < best:
            torch.save(model.state_dict(), "best.pt")
    """
    done = rewrite_source(parse(textwrap.dedent(script).encode(), Path("script.py")))
    assert [f for f in done.findings if f.rule == "save"] == []


@pytest.mark.parametrize("reduced", [False, True])
def test_a_value_of_another_file(tmp_path: Path, reduced: bool) -> None:
    (tmp_path / "judging.py").write_text(
        "import torch\nimport torch.distributed as dist\n\n\n"
        "def q_of(model, x):\n"
        "    t = model(x).mean()\n" + "    dist.all_reduce(t)\n" * reduced + "    return t.item()\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\nimport torch.distributed as dist\nfrom judging import q_of\n\n\n"
        "def main(model, x, top):\n"
        '    dist.init_process_group("nccl")\n'
        "    model.cuda()\n"
        "    if q_of(model, x.cuda()) > top:\n"
        '        torch.save(model.state_dict(), "top.pt")\n'
    )
    done = rewrite_folder(tmp_path)
    found = [f.message for one in done.files for f in one.findings if f.rule == "save"]
    assert [MAY_DIFFER in message for message in found] == [True] * (not reduced)


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
def test_a_counter_beside_a_model_that_is_named_like_a_metric(
    tmp_path: Path, portable: bool
) -> None:
    """`score_model` made `state["step"]` a replica's own, and `step % 10` made the rank a local one."""
    (tmp_path / "utils.py").write_text(
        textwrap.dedent(
            """
            import os

            import torch


            def restore(path, state):
                if not os.path.exists(path):
                    return state
                state["step"] = torch.load(path, map_location="cuda")["step"]
                return state


            def keep(path, state):
                saved = {"model": state["model"].module.state_dict(), "step": state["step"]}
                torch.save(saved, path)
            """
        )
    )
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import torch
            import torch.distributed as dist
            import utils
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(state, batch):
                state["model"](batch).mean().backward()
                state["step"] += 1


            def run(rank, world_size, loader):
                dist.init_process_group("nccl", rank=rank, world_size=world_size)
                score_model = DDP(torch.nn.Linear(4, 1).to(rank), device_ids=[rank])
                state = dict(model=score_model, step=0)
                state = utils.restore("last.pth", state)
                while state["step"] < 11:
                    step = state["step"]
                    train(state, next(loader).to(rank))
                    if step != state["step"]:
                        if step % 10 == 0 and rank == 0:
                            utils.keep("last.pth", state)
                        if step == 10:
                            if rank == 0:
                                utils.keep("end.pth", state)
            """
        )
    )
    done = rewrite_folder(
        tmp_path, options=RewriteOptions(style="portable") if portable else RewriteOptions()
    )
    assert [f for one in done.files for f in one.findings if f.rule == "save"] == []
    texts = {one.name.name: one.after.decode() for one in done.files}
    assert "rank == 0" not in texts["train.py"]
    assert ("shims.save(" if portable else "xm.save(") in texts["utils.py"]


METERS = """
import torch
import torch.distributed as dist
from collections import defaultdict


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    def share(self):
        t = torch.tensor([self.total, self.count], device="cuda")
        {reduces}
        self.total, self.count = t.tolist()

    @property
    def mean(self):
        return self.total / self.count


class Board:
    def __init__(self):
        self.meters = defaultdict(Meter)

    def share(self):
        for meter in self.meters.values():
            meter.share()


def judge(model, loader):
    board = Board()
    for x, y in loader:
        right = (model(x.cuda()).argmax(1) == y.cuda()).float().mean()
        board.meters["right"].update(right.item(), len(x))
    board.share()
    return {name: meter.mean for name, meter in board.meters.items()}
"""
HIGHEST = """
import torch
import torch.distributed as dist

from meters import judge


def main(model, loader, held_out, optimizer):
    dist.init_process_group("nccl")
    model.cuda()
    max_accuracy = 0.0
    for epoch in range(10):
        for x, y in loader:
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
        stats = judge(model, held_out)
        if max_accuracy < stats["right"]:
            torch.save(model.state_dict(), "best.pth")
        max_accuracy = max(max_accuracy, stats["right"])
"""


@pytest.mark.parametrize(("reduces", "reported"), [("dist.all_reduce(t)", False), ("pass", True)])
def test_the_highest_of_meters_that_an_object_holds(
    tmp_path: Path, reduces: str, reported: bool
) -> None:
    """Meters that a dictionary holds, and that a collective has made the same on all replicas."""
    (tmp_path / "meters.py").write_text(METERS.replace("{reduces}", reduces))
    (tmp_path / "train.py").write_text(HIGHEST)
    done = rewrite_folder(tmp_path, processes=1)
    messages = [note.message for file in done.files for note in file.findings]
    assert any(DECIDES_ALONE in one for one in messages) is reported


SAVED_THRICE = """
def keep(model, path):
    torch.save(model.state_dict(), path)
    print("kept", path)


def run(model, loader, held_out, optimizer, rank):
    top, best = 0.0, 0.0
    for epoch in range(3):
        for x in loader:
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
        everywhere, here = judge_all(model, held_out), judge(model, held_out)
        if rank == 0:
            keep(model, "last.pt")
            if everywhere > top:
                keep(model, "top.pt")
            if here > best:
                keep(model, "best.pt")
            for path in "ab":
                keep(model, path)
        top = max(top, everywhere)
"""


def test_where_a_call_of_a_function_that_saves_cannot_move_all_stay() -> None:
    head = HEAD.replace("import torch_xla.core.xla_model as xm\n", "")
    script = head[: head.index("def train(")] + SAVED_THRICE
    done = rewrite_source(parse(script.encode(), Path("train.py")))
    text = done.data.decode()
    assert (
        '        torch_xla.sync()\n        if rank == 0:\n            keep(model, "last.pt")\n'
        in text
    )
    assert "    xm.save(model.state_dict(), path, master_only=False)\n" in text
    assert [f for f in done.findings if f.rule in ("save", "XLA301")] == []


def test_each_call_of_a_function_that_saves_has_its_own_condition() -> None:
    """In a script that is written for torch_xla already, the others move."""
    script = HEAD[: HEAD.index("def train(")] + SAVED_THRICE
    done = rewrite_source(parse(script.encode(), Path("train.py")))
    text = done.data.decode()
    assert (
        """
        keep(model, "last.pt")
        if everywhere > top:
            keep(model, "top.pt")
        if rank == 0:
            if here > best:
                keep(model, "best.pt")
            for path in "ab":
                keep(model, path)
"""
        in text
    )
    lines = script.splitlines()
    said = {
        lines[finding.line - 1].strip(): finding.message
        for finding in done.findings
        if finding.rule == "save"
    }
    assert set(said) == {'keep(model, "best.pt")', "keep(model, path)"}
    asked = 1 + lines.index("            if here > best:")
    assert said['keep(model, "best.pt")'].startswith(f"`here > best` (line {asked}) {MAY_DIFFER}")
    assert said["keep(model, path)"].startswith('in `for path in "ab":` (line')
