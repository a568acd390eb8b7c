"""Small projects of several files: what is edited, what is reported, and what stays as it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

HELPER = """
import torch


class Episodes:
    def __init__(self, device, is_main_process=True):
        self.is_main_process = is_main_process
        self.total = torch.zeros(4, device=device)
        self.done = []

    def update(self, rewards, dones):
        if not self.is_main_process:
            return
        self.total += rewards
        self.done.extend((dones > 0).nonzero().cpu().tolist())

    def count(self, rewards):
        print(rewards.shape)
"""
AGENT = """
import torch
import torch.distributed as dist
from helper import Episodes


class Agent:
    def __init__(self, device, config):
        self.is_main_process = config["global_rank"] == 0
        self.episodes = Episodes(device, is_main_process=self.is_main_process)
        self.policy = torch.nn.Linear(3, 3).to(device)

    def rollout(self, steps):
        total = torch.zeros(4, device="cuda")
        with torch.no_grad():
            for step in range(steps):
                rewards = self.policy(torch.ones(4, 3, device="cuda") * step).sum(1)
                total = total + rewards
                self.episodes.CALL
            dist.all_reduce(total)
        return total


def main(rank):
    dist.init_process_group("nccl")
    return Agent("cuda", {"global_rank": rank}).rollout(4)
"""
DEVICES = """
from dataclasses import dataclass

import torch


@dataclass
class Settings:
    joystick_device: int = 0
    train_device: int = 0
    eval_device: int = 1
    device: int = 0


def run(settings: Settings, other):
    other.eval_device = 1
    moved = torch.nn.Linear(2, 2).to(settings.train_device), torch.nn.Linear(2, 2).to(other.eval_device)
    return moved, settings.joystick_device, torch.zeros(2).cuda()
"""
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from parts import *


def main(rank, cfg, loader):
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 2).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        x, y = move(batch, device=cfg.device)
        loss = compare(model(x), y)
        loss = loss[loss > cfg.least].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARTS = """
def move(batch, device="cpu"):
    x, y = batch
    return x.to(device), y.to(device)


def compare(out, y):
    return (out - y) ** 2
"""
SOLVER = """
import torch
import torch.distributed as dist


class Solver:
    def __init__(self, model, args):
        self.model, self.args, self.device, self.best = model, args, args.device, float("inf")

    def save(self, name):
        torch.save(self.model.state_dict(), name)

    def train(self, loader):
        for _ in range(3):
            loss = self.evaluate(loader)
            if self.args.distributed:
                loss = LOSS
            found = False
            if loss < self.best:
                self.best = loss
                found = True
            if found:
                self.save("best.pt")

    def evaluate(self, loader):
        total = 0.0
        for x in loader:
            total += self.model(x.to(self.device)).mean().data.cpu()
        return total / 3

    def reduce(self, tensor):
        if not self.args.distributed:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total


def main(args, loader):
    args.device = torch.device("cuda")
    dist.init_process_group("nccl")
    Solver(torch.nn.Linear(2, 2).to(args.device), args).train(loader)
"""


def run(folder: Path, **files: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the files of a rewritten project, and the rules and messages of its findings."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    done = rewrite_folder(folder)
    texts = {file.name.stem: file.after.decode() for file in done.files}
    return texts, [(note.rule, note.message) for _, note in done.left_to_do]


def test_the_graph_ends_around_what_one_replica_does_in_another_file(tmp_path: Path) -> None:
    update = "update(rewards, rewards > 0)"
    texts, _ = run(tmp_path, helper=HELPER, agent=AGENT.replace("CALL", update))
    call = f"                self.episodes.{update}\n"
    sync = "                torch_xla.sync()\n"
    assert f"{call}{sync}" in texts["agent"]


def test_lines_that_a_rewrite_of_the_other_file_adds_change_nothing(tmp_path: Path) -> None:
    timed = HELPER.replace("class", "def wait():\n    torch.cuda.synchronize()\n\n\nclass", 1)
    agent = AGENT.replace("CALL", "update(rewards, rewards > 0)")
    texts, _ = run(tmp_path, helper=timed, agent=agent)
    assert "import torch_xla" in texts["helper"]
    assert "(rewards, rewards > 0)\n                torch_xla.sync()\n" in texts["agent"]


def test_what_an_environment_gives_may_be_read_there_too(tmp_path: Path) -> None:
    agent = AGENT.replace("CALL", "update(given, given > 0)").replace(
        "total = total + rewards", "given = env.step(rewards)[0]"
    )
    agent = agent.replace("total = torch.zeros(4", "total = 1 + torch.zeros(4")
    texts, _ = run(tmp_path, helper=HELPER, agent=agent)
    assert "(given, given > 0)\n                torch_xla.sync()\n" in texts["agent"]


def test_what_all_replicas_do_in_another_file_needs_no_sync(tmp_path: Path) -> None:
    texts, _ = run(tmp_path, helper=HELPER, agent=AGENT.replace("CALL", "count(rewards)"))
    assert "torch_xla.sync()" not in texts["agent"]


def test_numbers_of_other_devices_stay(tmp_path: Path) -> None:
    texts, _ = run(tmp_path, settings=DEVICES)
    assert "    joystick_device: int = 0\n" in texts["settings"]
    for name in ("train_device", "eval_device", "device"):
        assert f'    {name}: int = "xla"\n' in texts["settings"]


def test_a_default_cpu_that_the_training_does_not_take_is_no_read(tmp_path: Path) -> None:
    _, findings = run(tmp_path, train=TRAIN, parts=PARTS)
    assert not [rule for rule, _ in findings if rule == "XLA203"]
    assert [message for rule, message in findings if rule == "XLA103"]


TAKES = """
import torch
from parts import move


def main(args, model, reader):
    args.device = "cuda:0"
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = move(reader, device=args.device)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
SWEEP = """
import torch


def move(reader, device="cpu"):
    x, y = reader.sample()
    if "cuda" in torch.device(device).type:
        x = x.pin_memory().to(device)
    else:
        x = x.to(device)
    return x, y


@torch.no_grad()
def sweep(model, reader, device="cpu"):
    losses = []
    for _ in range(24):
        x, y = move(reader, device=device)
        losses.append(model(x, y))
    return losses
"""


def test_a_default_cpu_that_another_function_hands_on_is_no_read_either(tmp_path: Path) -> None:
    _, findings = run(tmp_path, train=TAKES, parts=SWEEP)
    assert not [rule for rule, _ in findings if rule == "XLA203"]


MASKS = """
import torch


def covered(codes, hidden):
    chosen = torch.rand(size=codes.size()).to(codes.device) < 0.5
    return torch.where(chosen, hidden, codes), chosen.view(-1), hidden
"""
COVER = """
import torch
import torch.distributed as dist
from masks import covered
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, cfg, loader):
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 2).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right = []
    for codes in loader:
        codes = codes.cuda()
        seen, chosen, hidden = covered(codes, 7)
        out = model(seen)
        loss = (out - codes).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        correct = (out == codes).float()
        right.append(correct[chosen.view(-1)].mean() + correct[hidden])
"""


def test_masks_that_a_function_of_another_file_returns(tmp_path: Path) -> None:
    """They passed in silence, and each turn compiled again."""
    _, findings = run(tmp_path, masks=MASKS, cover=COVER)
    assert [rule for rule, _ in findings if rule == "XLA103"] == ["XLA103"]


REDUCES = """
import torch
import torch.distributed as dist


def mean_std(x):
    std, mean = torch.std_mean(x, dim=0)
    both = torch.stack([mean, std])
    dist.all_reduce(both)
    return both / dist.get_world_size()
"""
ADVANTAGES = """
import torch
import torch.distributed as dist
from reduces import mean_std


def prepare(agent, memory):
    seen, drawn = memory.data("seen"), memory.data("drawn")
    chosen = (drawn == 1.0).flatten()
    gain = agent.value(seen).flatten()
    HOST
    mean, std = CALL
    return (gain - mean) / std
"""


@pytest.mark.parametrize(
    ("host", "call", "parts"),
    [
        ("pass", "mean_std(gain[chosen])", True),
        ("picked = gain[chosen]", "mean_std(picked)", True),
        ("picked = gain[chosen].abs()", "mean_std(picked.float())", True),
        ("gain = gain.cpu().numpy()", "mean_std(gain[chosen])", False),
        ("pass", "torch.std_mean(gain[chosen])", False),
        ("pass", "mean_std(gain[chosen.argmax()])", False),
    ],
)
def test_a_mask_before_a_collective_outside_of_the_step(
    tmp_path: Path, host: str, call: str, parts: bool
) -> None:
    """Replicas with other numbers of elements ran other graphs up to the collective, unreported."""
    text = ADVANTAGES.replace("HOST", host).replace("CALL", call)
    _, findings = run(tmp_path, reduces=REDUCES, advantages=text)
    masks = [message for _, message in findings if "a boolean mask before a collective" in message]
    assert bool(masks) is parts


CLIPS = """
import torch


def train(model, optimizer, reader, cfg):
    model.cuda()
    for turn in range(cfg.turns):
        for part in range(cfg.parts):
            loss = model(reader.sample().cuda()).mean() / cfg.parts
            loss.backward()
        if TEST:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip).item()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "every"),
    [
        ("cfg.clip is not None", True),
        ("cfg.clip != 0.0", True),
        ("cfg.clip > 0 and cfg.kind == 'norm'", True),
        ("turn > 0", False),
        ("reader.count > 0", False),
        ("turn % 100 == 0", False),
    ],
)
def test_a_read_below_an_option_is_one_of_every_step(
    tmp_path: Path, test: str, every: bool
) -> None:
    _, findings = run(tmp_path, clips=CLIPS.replace("TEST", test))
    reads = [message for _, message in findings if message.startswith(".item() at every step")]
    assert bool(reads) is every


QUANT = """
import torch


class Quantizer:
    matrix = torch.eye(8, device="cuda") * 2
"""


AS_MAIN = """
import torch

if __name__ == "__main__":
    print(torch.eye(8, device="cuda") * 2)
"""


@pytest.mark.parametrize(("quant", "is_early"), [(QUANT, True), (AS_MAIN, False)])
def test_a_tensor_that_an_import_makes_on_the_device_before_the_launch(
    tmp_path: Path, quant: str, is_early: bool
) -> None:
    main = (
        "import quant  # before the launch\n"
        + TRAIN
        + "\n\nif __name__ == '__main__':\n    main(0, 1, 2)\n"
    )
    _, findings = run(tmp_path, quant=quant, main=main, parts=PARTS)
    assert bool([message for rule, message in findings if rule == "XLA706"]) is is_early


NETWORKS = """
import torch


class Trainer:
    def __init__(self, path, net):
        self.at = torch.load(path, map_location="cpu")["at"]
        self.net = net.cuda()

    def save_network(self, net, at):
        torch.save({"net": net.state_dict(), "at": at}, "net.pt")

    def end(self):
        self.save_network(self.net, self.at)
"""


def test_a_method_named_as_a_network_is_none(tmp_path: Path) -> None:
    _, findings = run(tmp_path, networks=NETWORKS)
    assert not [rule for rule, _ in findings if rule == "XLA830"]


@pytest.mark.parametrize("loss", ["self.reduce(loss)", "self.reduce(loss.to(self.device))"])
def test_what_all_replicas_reduced_decides_the_save(loss: str, tmp_path: Path) -> None:
    texts, findings = run(tmp_path, solver=SOLVER.replace("LOSS", loss))
    assert "xm.save(self.model.state_dict(), name, global_master=True)" in texts["solver"]
    assert not [message for rule, message in findings if rule == "save"]


def test_a_loss_that_each_replica_has_alone_does_not(tmp_path: Path) -> None:
    _, findings = run(tmp_path, solver=SOLVER.replace("LOSS", "loss.to(self.device)"))
    assert [message for rule, message in findings if rule == "save"]


MANAGER = """
import torch


class Manager:
    def __init__(self, parts):
        self.parts = parts
        self.policy = torch.nn.Linear(2, 2).to("cuda")

    def step(self):
        for name, part in self.parts.items():
            part.step(0.1)
"""


@pytest.mark.parametrize("trains", [False, True])
def test_a_step_in_a_file_that_trains_nothing_is_no_optimizers(
    trains: bool, tmp_path: Path
) -> None:
    _, findings = run(tmp_path, manager=MANAGER + "# the loss" * trains)
    assert bool([message for rule, message in findings if rule == "step"]) is trains


def test_torch_that_another_module_hands_on_is_not_imported_again(tmp_path: Path) -> None:
    safe = "import torch\nfrom torch.amp import autocast\n\n__all__ = ['autocast', 'torch']\n"
    script = """
        from safe import autocast, torch


        def main(cfg, x):
            dtype = torch.bfloat16 if cfg.amp == "bf16" else torch.float16
            model = torch.nn.Linear(2, 2).to("cuda")
            with autocast(device_type="cuda", dtype=dtype):
                return model(x.to("cuda"))
    """
    texts, _ = run(tmp_path, safe=safe, train=script)
    assert "    dtype = torch.bfloat16\n" in texts["train"]
    assert "\nimport torch\n" not in texts["train"]


def test_counts_of_compilations_that_stay_empty_are_reported(tmp_path: Path) -> None:
    script = """
        import torch


        def step(model, x):
            compiled = torch.compile(model.to("cuda"))
            compiled(x.to("cuda"))
            assert len(torch._dynamo.utils.get_compilation_metrics()) > 0
    """
    _, findings = run(tmp_path, train=script)
    assert [message for _, message in findings if "stays empty" in message]
