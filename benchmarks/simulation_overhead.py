"""What the simulation costs a step against plain gloo DDP on the CPU, and what watching it costs.

    python benchmarks/simulation_overhead.py

One script of a transformer with 10 million parameters on 2 ranks: unedited over gloo, its rewrite on
simulated replicas, the same recorded as `migrate prove` does, the same watched as `migrate run` does. Each
runs in turn, several times; of each run the median of the steps after the warm-up counts, of the runs the
least, as other work on the machine only ever adds. The CPU time of the process of rank 0, beside the wall
time, says more on a machine that is not quiet. Exit code 1 if the simulation costs more than 2.5 times
plain DDP, or the recording more than a tenth.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from history import append
from rich.console import Console

from migrate.prove.run import run_script
from migrate.report.text.tables import plain_table
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.temporary import written_apart

SIMULATION_LIMIT, RECORDING_LIMIT = 2.5, 1.1
RUNS = int(os.environ.get("RUNS", "3"))
WARM_UP = 5

SCRIPT = """
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def main(rank, world_size, out):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29531"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(320, 5, 1280, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Linear(320, 64)).to(rank)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    times, computed = [], []
    for step in range(STEPS):
        started, before = time.perf_counter(), time.process_time()
        inputs = torch.randn(8, 64, 320).to(rank)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        value = loss.item()
        times.append(time.perf_counter() - started)
        computed.append(time.process_time() - before)
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        with open(out, "w") as file:
            kept = {"times": times, "computed": computed, "parameters": parameters, "loss": value}
            json.dump(kept, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size, sys.argv[1]), nprocs=world_size)
"""


def step_seconds(folder: Path, script: Path, kind: str) -> tuple[float, float, int, float]:
    """The median step after the warm-up, in wall and CPU time; the number of parameters; the last loss."""
    out = folder / "times.json"
    out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as written:
        result = run_script(
            script,
            [str(out)],
            side="original" if kind == "gloo" else "xla",
            replicas=2,
            record_dir=Path(written) if kind == "recorded" else None,
            observe_dir=Path(written) if kind == "watched" else None,
            output="capture",
        )
    if result.returncode:
        sys.exit(f"{kind}: {result.output}")
    value = json.loads(out.read_text())
    wall, computed = (statistics.median(value[key][WARM_UP:]) for key in ("times", "computed"))
    return wall, computed, value["parameters"], value["loss"]


def main() -> int:
    """Measure, print the table, and return the exit code."""
    kinds = ("gloo", "simulated", "recorded", "watched")
    best, least = (dict.fromkeys(kinds, float("inf")) for _ in range(2))
    losses = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = folder / "train.py"
        original.write_text(SCRIPT)
        done = rewrite(original)
        if done.fails():
            sys.exit(f"left to do by hand: {done.findings}")
        with written_apart(done) as rewritten:
            for _ in range(RUNS):
                for kind in kinds:
                    script = original if kind == "gloo" else rewritten
                    seconds, computed, parameters, losses[kind] = step_seconds(folder, script, kind)
                    best[kind] = min(best[kind], seconds)
                    least[kind] = min(least[kind], computed)
    table = plain_table("a step of 2 ranks", "ms", "ratio", "limit", "CPU ms", "ratio", "last loss")
    rows = (
        ("original over gloo", "gloo", "gloo", None),
        ("rewrite on simulated replicas", "simulated", "gloo", SIMULATION_LIMIT),
        ("the same, recorded as by migrate prove", "recorded", "simulated", RECORDING_LIMIT),
        ("the same, watched as by migrate run", "watched", "simulated", None),
    )
    over = False
    for label, kind, peer, limit in rows:
        ratio = best[kind] / best[peer]
        over = over or (limit is not None and ratio > limit)
        table.add_row(
            label,
            f"{best[kind] * 1e3:.0f}",
            f"{ratio:.2f}",
            "" if limit is None else f"{limit:g}{': missed' if ratio > limit else ''}",
            f"{least[kind] * 1e3:.0f}",
            f"{least[kind] / least[peer]:.2f}",
            f"{losses[kind]:.7g}",
        )
        append(
            "simulation-overhead",
            {
                "a step of 2 ranks": label,
                "ms": f"{best[kind] * 1e3:.0f}",
                "ratio": f"{ratio:.2f}" if peer != kind else "",
                "limit": limit or "",
                "CPU ratio": f"{least[kind] / least[peer]:.2f}" if peer != kind else "",
            },
            note=f"{RUNS} runs",
        )
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(f"{parameters:,} parameters, {RUNS} runs of each, float32")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
