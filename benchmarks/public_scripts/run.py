"""Run public DDP scripts unedited through `python -m shims`, on synthetic data.

    python benchmarks/public_scripts/run.py --repositories DIR [--backend cpu] [--only NAME]

DIR holds checkouts named OWNER+NAME; none of their code is in this repository. torchvision must be
installed for those that import it. Prints one line for each script: how it ended and, where it did not
run, its last error line.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 280


@dataclass(frozen=True)
class Script:
    """One script of a public repository and how to make it a matter of seconds.

    `{data}` in an argument is a folder of images, `{port}` a free port.
    """

    repository: str
    path: str
    args: str = ""
    prepare: Callable[[Path], None] | None = None
    start: str = ""  # for a script that can start its ranks in several ways


def images(folder: Path) -> None:
    """Make a folder of random JPEG files as ImageFolder wants it: 2 classes, 8 images each."""
    from PIL import Image

    draw = random.Random(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            for number in range(8):
                path = folder / split / label / f"{number}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.frombytes("RGB", (72, 72), draw.randbytes(72 * 72 * 3)).save(path)


def shakespeare(repository: Path) -> None:
    """Write random tokens where nanoGPT looks for its characters."""
    draw = random.Random(0)
    folder = repository / "data" / "shakespeare_char"
    for name in ("train.bin", "val.bin"):
        tokens = [draw.randrange(65) for _ in range(4096)]
        (folder / name).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


SCRIPTS = (
    Script("pytorch+examples", "distributed/ddp-tutorial-series/multigpu.py", "1 5"),
    Script("pytorch+examples", "distributed/ddp-tutorial-series/multigpu_torchrun.py", "1 5"),
    Script("pytorch+examples", "distributed/ddp/example.py"),
    Script(
        "pytorch+examples",
        "imagenet/main.py",
        "{data} -a resnet18 -b 4 -j 0 --epochs 1 --multiprocessing-distributed --world-size 1 "
        "--rank 0 --dist-url tcp://127.0.0.1:{port}",
        start="spawn",
    ),
    Script(
        "karpathy+nanoGPT",
        "train.py",
        "config/train_shakespeare_char.py --max_iters=4 --eval_interval=4 --eval_iters=1 "
        "--batch_size=4 --block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --compile=False "
        "--gradient_accumulation_steps=4 --log_interval=1",
        shakespeare,
    ),
    Script(
        "facebookresearch+simsiam",
        "main_simsiam.py",
        "{data} -a resnet18 -b 4 -j 0 --epochs 1 --dim 64 --pred-dim 16 "
        "--multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:{port}",
        start="spawn",
    ),
    Script(
        "facebookresearch+barlowtwins",
        "main.py",
        "{data} --workers 0 --epochs 1 --batch-size 8 --projector 32-32",
    ),
    Script(
        "facebookresearch+dino",
        "main_dino.py",
        "--data_path {data}/train --arch vit_tiny --out_dim 64 --local_crops_number 1 "
        "--batch_size_per_gpu 4 --epochs 1 --warmup_epochs 0 --num_workers 0 --output_dir {data}",
    ),
    Script("openai+guided-diffusion", "scripts/image_train.py", "--data_dir {data}/train/cat"),
    Script("yangkky+distributed_tutorial", "src/mnist-distributed.py", "-g 2 --epochs 1"),
    Script("The-AI-Summer+pytorch-ddp", "train_ddp.py"),
    Script(
        "rentainhe+pytorch-distributed-training",
        "distributed.py",
        "--ip 127.0.0.1 --port {port} --batch_size 8 --epochs 1",
    ),
)


def run(script: Script, repositories: Path, backend: str, data: Path) -> tuple[str, float, str]:
    """Return how the script ended ("runs" or "fails"), its seconds, and its last error line."""
    repository = repositories / script.repository
    path = repository / script.path
    if script.prepare is not None:
        script.prepare(repository)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = script.args.format(data=data, port=port).split()
    start = ["--start", script.start] if script.start else []
    command = [sys.executable, "-m", "shims", "--ranks", "2", "--backend", backend, *start]
    command += [str(path), *args]
    # The repository itself, as if it were installed.
    python_path = [
        str(HERE / "site"),
        str(HERE.parents[1]),
        str(repository),
        os.environ.get("PYTHONPATH", ""),
    ]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, python_path)), "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    folder = path.parent if "/" in script.path and "scripts" not in script.path else repository
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **variables},
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "fails", SECONDS, f"still running after {SECONDS} s"
    seconds = time.monotonic() - started
    if ended.returncode == 0:
        return "runs", seconds, ""
    lines = re.findall(r"^.*(?:Error|Exception|error:).*$", ended.stdout + ended.stderr, re.M)
    return "fails", seconds, (lines or ["no message"])[-1].strip()[:200]


def main() -> int:
    """Run the scripts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda", "xla"])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        images(Path(folder))
        for script in SCRIPTS:
            name = f"{script.repository.replace('+', '/')} {script.path}"
            if options.only not in name:
                continue
            ended, seconds, reason = run(
                script, options.repositories, options.backend, Path(folder)
            )
            failed += ended != "runs"
            print(
                f"| {name} | {options.backend} | {ended} | {seconds:.0f} s | {reason} |", flush=True
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
