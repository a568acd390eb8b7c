"""The portable style: every rule speaks it, and what it writes trains as the original did."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from migrate.catalogue.target import XLA
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rule import ExampleKind, Rule, RuleExample
from migrate.rewrite.rules import all_rules
from migrate.syntax.source import parse
from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

PORTABLE = RewriteOptions(style="portable")
TORCH_XLA = re.compile(r"torch_xla|\bx[mr]\.|['\"]xla(://)?['\"]")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LAUNCHES = sorted(folder.name for folder in EXAMPLES.glob("launch_*"))
SHOWN = [
    pytest.param(rule, example, id=f"{rule.name}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
    if example.kind is ExampleKind.REWRITTEN and example.target == XLA
]
ALL = [
    pytest.param(rule, example, id=f"{rule.name}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
    if example.target == XLA
]


@functools.cache
def rewritten(script: str, options: RewriteOptions = PORTABLE, rule: Rule | None = None) -> Rewrite:
    notebook = rule is not None and rule.notebook
    path = Path("notebook.ipynb" if notebook else "script.py")
    if rule is not None:
        options = replace(rule.options, style=options.style)
    return rewrite_source(parse(script.encode(), path), options=options)


@pytest.mark.parametrize(("rule", "example"), SHOWN)
def test_no_rule_writes_torch_xla(rule: Rule, example: RuleExample) -> None:
    done = rewritten(example.before, rule=rule)
    text = done.data.decode()
    left = [line for line in text.splitlines() if TORCH_XLA.search(line)]
    # What the script itself has of torch_xla and shims no word for stays, and is reported.
    assert all(line in example.before for line in left)
    lines = {example.before.splitlines().index(line) + 1 for line in left if "import" not in line}
    assert lines <= {note.line for note in done.findings if note.rule == rule.name}


@pytest.mark.parametrize(
    ("rule", "example"),
    # By default one example of a rule; the engine looks itself at all.
    [
        pytest.param(
            *one.values, id=one.id, marks=() if one.id.endswith("-0") else pytest.mark.long
        )
        for one in ALL
    ],
)
def test_a_second_run_changes_nothing(rule: Rule, example: RuleExample) -> None:
    # The engine looks itself, by the same rules; this is a run on its own.
    again = rewritten(rewritten(example.before, rule=rule).data.decode(), rule=rule)
    assert not again.changed
    assert not again.edits


@pytest.mark.parametrize("name", ["ddp_toy", *LAUNCHES])
def test_the_native_style_leaves_a_portable_script(name: str) -> None:
    text = rewritten((EXAMPLES / name / "before.py").read_text()).data.decode()
    again = rewritten(text, RewriteOptions())
    assert again.data.decode() == text
    # The default of an option that no longer does anything.
    left = {note.message for note in again.findings if note.rule != "XLA108"}
    assert left <= {"'nccl': the backend on XLA is 'xla'"}


def test_what_only_cuda_has_stays_for_cuda() -> None:
    done = rewritten(
        """\
import torch

torch.backends.cudnn.benchmark = True
torch.cuda.empty_cache()


def train(model, loader, use_amp):
    model = torch.compile(model.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    torch.cuda.reset_peak_memory_stats()
    side = torch.cuda.Stream()
    for x in loader:
        with torch.cuda.stream(side):
            x = x.pin_memory().cuda(non_blocking=True)
        print(torch.cuda.max_memory_allocated())
"""
    )
    assert done.data.decode() == (
        """\
import shims
import torch

torch.backends.cudnn.benchmark = True
torch.cuda.empty_cache()


def train(model, loader, use_amp):
    model = shims.compile(model.to(shims.device()))
    optimizer = torch.optim.AdamW(model.parameters(), fused=shims.device_type() == "cuda")
    if shims.device_type() == "cuda":
        torch.cuda.reset_peak_memory_stats()
    side = torch.cuda.Stream() if shims.device_type() == "cuda" else None
    for x in loader:
        with torch.cuda.stream(side):
            x = shims.pin_memory(x).to(shims.device(), non_blocking=True)
        print(shims.memory(missing=0).peak)
"""
    )


def test_nothing_before_the_launch_starts_the_runtime() -> None:
    done = rewritten(
        """\
import torch
import torch.multiprocessing as mp

device = torch.device("cuda")


def worker(rank, name, device="cuda"):
    print(torch.ones(1, device="cuda"), name, device)


if __name__ == "__main__":
    mp.spawn(worker, args=("cuda:0",), nprocs=torch.cuda.device_count())
"""
    )
    text = done.data.decode()
    assert "device = torch.device(shims.device_type())" in text
    assert "def worker(rank, name, device=shims.device_type()):" in text
    assert "torch.ones(1, device=shims.device())" in text


SCRIPT = """\
import functools
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def worker(rank, world_size, folder):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29517"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).cuda(rank)
    model = DDP(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.arange(96.0).reshape(16, 6) / 96
    dataset = TensorDataset(rows, rows[:, :2] ** 2)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, pin_memory=True, drop_last=True)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.cuda(rank, non_blocking=True), labels.cuda(rank)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            losses.append(loss.item())
    mean = torch.tensor(losses).cuda(rank)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    print("\\n".join(f"rank {rank} step {n} loss {loss!r}" for n, loss in enumerate(losses)))
    if rank == 0:
        print("mean", mean.sum().item())
        torch.save({"model": model.module.state_dict(), "losses": losses}, f"{folder}/last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, sys.argv[1]), nprocs=2)
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output: str) -> dict[tuple[str, str], float]:
    """Return the losses that the ranks print, by rank and step."""
    found = re.findall(r"rank (\d) step (\d+) loss ([\d.e-]+)", output)
    return {(rank, step): float(loss) for rank, step, loss in found}


@pytest.mark.parametrize("backend", ["cpu", pytest.param("xla", marks=pytest.mark.long)])
def test_it_trains_as_the_original_does(backend: str, tmp_path: Path) -> None:
    if backend == "xla":
        need_torch_xla()
    (tmp_path / "before.py").write_text(SCRIPT)
    (tmp_path / "after.py").write_bytes(rewritten(SCRIPT).data)
    start = ("-m", "shims", "--backend", "cpu", "--ranks", "2")
    want = losses(run(*start, "before.py", ".", cwd=tmp_path))
    ranks = {"MIGRATE_BACKEND": backend, "MIGRATE_RANKS": "2"}
    got = losses(run("after.py", ".", cwd=tmp_path, **ranks))
    assert len(want) == 8
    assert got == pytest.approx(want, rel=1e-5)
    assert (tmp_path / "last.pt").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "cpu") for name in LAUNCHES), ("launch_module", "xla"), ("launch_torchrun", "xla")],
)
def test_the_launch_examples_train(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "xla":
        need_torch_xla()
    after = rewritten((EXAMPLES / name / "before.py").read_text()).data
    (tmp_path / "after.py").write_bytes(after)
    # Starts its processes with `Process` itself, which `python -m shims` does not see by itself.
    start = ["--start", "alone"] if name == "launch_process" else []
    original = ("-m", "shims", "--ranks", "2", "--backend", "cpu", *start, "before.py")
    want = run(*original, cwd=EXAMPLES / name)
    got = run("after.py", cwd=tmp_path, MIGRATE_BACKEND=backend, MIGRATE_RANKS="2")
    printed = re.compile(r"rank \d of 2: loss \d+\.\d{4}")
    assert len(printed.findall(got)) == 2
    assert sorted(printed.findall(got)) == sorted(printed.findall(want))


MIXED = """
from contextlib import nullcontext

import torch
from torch.cuda.amp import GradScaler, autocast


def train(model, loader, optimizer, args, device, dtype):
    scaler = GradScaler(enabled=args.amp)
    region = autocast if args.amp else nullcontext
    kind = torch.float16 if args.half else torch.float32
    stays = {"float32": torch.float32, "float16": torch.float16}[args.dtype]
    for x in loader:
        with autocast(args.amp), torch.autocast("cuda"), torch.amp.autocast("cuda", torch.half):
            loss = model(x)
        with torch.autocast("cuda" if torch.cuda.is_available() else "cpu"):
            loss = model(x)
        with torch.autocast("cuda", enabled=False), torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
        with torch.autocast("cuda", dtype=kind), torch.autocast("cuda", dtype=dtype), region():
            loss = model(x)
        with torch.autocast(device.type, dtype=torch.float16), torch.autocast(device.type, stays):
            loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@autocast()
def evaluate(model, x):
    return model(x)
"""


@pytest.mark.parametrize(
    "line",
    [
        "scaler = shims.grad_scaler(enabled=args.amp)",
        "region = functools.partial(shims.autocast, dtype=torch.float16) if args.amp else nullcontext",
        "kind = torch.float16 if args.half else torch.float32",
        'stays = {"float32": torch.float32, "float16": shims.autocast_dtype(torch.float16)}[args.dtype]',
        "with shims.autocast(dtype=torch.float16, enabled=args.amp), shims.autocast(dtype=torch.float16), "
        "shims.autocast(dtype=torch.half):",
        "with shims.autocast(dtype=torch.get_autocast_dtype(shims.device_type())):",
        "with shims.autocast(enabled=False), shims.autocast(dtype=torch.bfloat16):",
        "with shims.autocast(dtype=kind), shims.autocast(dtype=dtype), region():",
        "with torch.autocast(device.type, dtype=shims.autocast_dtype(torch.float16)), "
        "torch.autocast(device.type, stays):",
        "scaler.scale(loss).backward()",
        "@shims.autocast(dtype=torch.float16)",
    ],
)
def test_mixed_precision_is_the_scripts_own_on_cuda(line: str) -> None:
    done = rewritten(MIXED)
    assert line in [text.strip() for text in done.data.decode().splitlines()]
    # Where the type is right on every device nothing is said of it.
    assert not [note for note in done.findings if "float16" in note.message]


def test_apex_in_bfloat16_on_cuda_is_told() -> None:
    script = (
        "from apex import amp\n\n\ndef fit(model, optimizer):\n"
        "    model, optimizer = amp.initialize(model, optimizer, opt_level='O1')\n"
    )
    told = [note.message for note in rewritten(script).findings if note.rule == "apex-amp"]
    assert len(told) == 1
    assert "without a loss scale" in told[0]
    assert "GPUs without bfloat16" in told[0]
    native = rewritten(script, RewriteOptions())
    assert not [note for note in native.findings if note.rule == "apex-amp"]
