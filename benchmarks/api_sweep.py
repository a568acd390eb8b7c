"""What torch_xla makes of torch's public API, and whether `migrate check` and `migrate rewrite` say so.

    python benchmarks/api_sweep.py [calls] [operators] [replicas] [--only TEXT] [--csv FILE] [--limit SECONDS]

`calls` are the blocks of api_sweep/one_device.txt, run on the CPU by torch and on XLA. `operators` are those
of torch's own op_db with their samples. `replicas` are the blocks of api_sweep/replicas.txt, on two processes
of gloo and two simulated replicas. A call may raise, hang, give another value, dtype or shape, run on the CPU
or wait for the device. What misbehaves is written into a training script, and `migrate check`, which asks the
rewrite, is asked of it. Prints the rows; a row without a code is silent. Children are started again behind a
call that ends or hangs them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from migrate.check.config import Config
from migrate.check.finding import Fix
from migrate.rewrite.check_findings import findings_of
from shims import activate

FOLDER = Path(__file__).with_suffix("")
sys.path.insert(0, str(FOLDER))
CHILD = FOLDER / "child.py"

from child import blocks, told  # noqa: E402

COLUMNS = ("api", "happens", "reported")
SCRIPT = """import copy
import io
import logging
import math
import os
import pickle

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
    sampler = torch.utils.data.DistributedSampler(data, drop_last=True)
    loader = torch.utils.data.DataLoader(data, batch_size=6, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
@SETUP@
    model = DDP(model, device_ids=[rank])
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
@STEP@
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""


def run(kind: str, only: str, where: str, limit: float) -> dict[str, Any]:
    """Return what comes of each call of a kind, by its name; children that end or hang are started again."""
    found: dict[str, Any] = {}
    start, environment = 0, dict(os.environ)
    if kind == "replicas":
        environment |= {"SWEEP_PORT": str(free_port())}
        environment |= activate.environment("simulate", 2) if where == "xla" else {}
    while True:
        command = [sys.executable, str(CHILD), kind, str(start), only, where]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        heard = Heard(child)
        while child.poll() is None:
            time.sleep(0.5)
            if time.monotonic() - heard.last > limit:
                child.kill()
        heard.join()
        found |= heard.answers
        if heard.current is None:
            if child.returncode:
                raise SystemExit(f"{' '.join(command)} ended with exit code {child.returncode}")
            return found
        hung = child.returncode == -9
        found[heard.current["name"]] = "hangs" if hung else f"ends the process ({child.returncode})"
        start = heard.current["start"] + 1


class Heard(threading.Thread):
    """What a child says, and when it last did."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        super().__init__()
        self.answers: dict[str, Any] = {}
        self.current: dict[str, Any] | None = None
        self.last = time.monotonic()
        self._lines = child.stdout
        self.start()

    def run(self) -> None:
        """Read until the child ends."""
        for line in self._lines or ():
            self.last = time.monotonic()
            if not line.startswith('{"'):
                continue
            said = json.loads(line)
            self.current = said if "start" in said else None
            if "done" in said:
                self.answers[said["name"]] = said["answer"]


def compared(reference: Any, answer: Any) -> str:
    """Return what two replicas of XLA do otherwise than two of gloo; empty where it is the same."""
    if not isinstance(reference, dict):
        return f"on gloo: {reference or 'no answer'}; on XLA: {answer}"[:200]
    if not isinstance(answer, dict):
        return str(answer)
    # Simulated replicas exchange over the host: a wait is the simulation's.
    return told(
        reference, answer | {"did": [did for did in answer.get("did", ()) if did != "waits"]}
    )


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def script(setup: str, step: str) -> tuple[str, set[int]]:
    """Return a training script with a call in it, and the lines of the call."""
    text, lines = SCRIPT, set()
    for mark, code, indent in (("@SETUP@", setup, 4), ("@STEP@", step, 12)):
        first = text.splitlines().index(mark) + 1
        body = textwrap.indent(code.rstrip("\n"), " " * indent)
        text = text.replace(mark, body)
        lines |= set(range(first, first + body.count("\n") + 1))
    return text, lines


def reported(path: Path, setup: str, step: str) -> str:
    """Return the codes that `migrate check` gives a call in a training script, its rewrites with a star."""
    text, lines = script(setup, step)
    path.write_text(text)
    findings = findings_of([path], Config())[1]
    return " ".join(
        sorted(
            {
                f"{one.code}{'*' * (one.fix is not Fix.NONE)}"
                for one in findings
                if one.line in lines
            }
        )
    )


def in_step(name: str) -> str:
    """Return how a script calls an operator of op_db in a step."""
    return f"out = {name.partition(' ')[0]}(x)"


def main() -> int:
    """Sweep, and print what misbehaves; return 1 where nothing is said of some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=["calls", "operators", "replicas", []])
    parser.add_argument("--only", default="")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--limit", type=float, default=300)
    asked = parser.parse_args()
    rows = []
    tried = 0
    for kind in asked.kinds or ("calls", "operators", "replicas"):
        happens = run(kind, asked.only, "xla", asked.limit)
        if kind == "replicas":
            gloo = run(kind, asked.only, "cpu", asked.limit)
            happens = {name: compared(gloo.get(name), answer) for name, answer in happens.items()}
        tried += len(happens)
        written = {} if kind == "operators" else {name: rest for name, *rest in blocks(kind)}
        with tempfile.TemporaryDirectory() as folder:
            for name, what in happens.items():
                if what:
                    setup, step = written.get(name, ("", in_step(name)))
                    says = reported(Path(folder) / "train.py", setup, step)
                    rows.append({"api": name, "happens": what, "reported": says})
                    print(*rows[-1].values(), sep=" | ", flush=True)
    silent = sum(not row["reported"] for row in rows)
    print(f"{tried} tried, {len(rows)} misbehave, {silent} of these silent")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return bool(silent)


if __name__ == "__main__":
    raise SystemExit(main())
