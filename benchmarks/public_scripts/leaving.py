"""Move public torch_xla scripts to torch_tpu, and compare ten steps of both libraries.

    python benchmarks/public_scripts/leaving.py --repositories DIR --torch-tpu PYTHON [--only NAME]

DIR holds checkouts named OWNER+NAME; none of their code is in this repository. PYTHON is the interpreter of
the environment with torch_tpu, which cannot have torch_xla. Each script is copied and made small (sizes of
model and batch, in the copy that both sides come from), rewritten by `migrate rewrite --target torch_tpu`
without an edit by hand, and run: the original on torch_xla, the result on torch_tpu, both simulated. Prints a
line for each script and appends it to benchmarks/history/torch-xla-scripts.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from places import free_port
from scripts import smaller

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
STEPS = 10
REFUSED = "refused"


@dataclass(frozen=True)
class XlaScript:
    """A public script of torch_xla.

    Attributes:
        repository: OWNER+NAME, the folder of its checkout.
        path: the script in it.
        project: the folder that is rewritten as a whole; empty: the script alone.
        ranks: how many of them.
        args: arguments.
        small: files with what makes the run small: text and its replacement.
    """

    repository: str
    path: str
    project: str = ""
    ranks: int = 1
    args: str = ""
    small: tuple[tuple[str, str, str], ...] = ()

    @property
    def name(self) -> str:
        """The repository as GitHub writes it, and the script."""
        return f"{self.repository.replace('+', '/')} {self.path}"


_RESNET = (
    ("examples/train_resnet_base.py", "self.img_dim = 224", "self.img_dim = 64"),
    ("examples/train_resnet_base.py", "self.batch_size = 128", "self.batch_size = 16"),
    ("examples/train_resnet_base.py", "data=(torch.zeros", "data=(torch.randn"),
    ("examples/train_resnet_base.py", "weight_decay=1e-4", "lr=1e-4, weight_decay=1e-4"),
)
_DECODER = (
    ("examples/train_decoder_only_base.py", "self.batch_size = 16", "self.batch_size = 2"),
    ("examples/train_decoder_only_base.py", "self.seq_len = 512", "self.seq_len = 16"),
    ("examples/decoder_only_model.py", "hidden_size: int = 1024", "hidden_size: int = 32"),
    (
        "examples/decoder_only_model.py",
        "num_attention_heads: int = 8",
        "num_attention_heads: int = 4",
    ),
    (
        "examples/decoder_only_model.py",
        "intermediate_size: int = 32 * 1024",
        "intermediate_size: int = 64",
    ),
    ("examples/decoder_only_model.py", "vocab_size: int = 3200", "vocab_size: int = 64"),
)


def _example(
    path: str, small: tuple[tuple[str, str, str], ...], ranks: int = 1, args: str = ""
) -> XlaScript:
    return XlaScript("pytorch+xla", f"examples/{path}", "examples", ranks, args, small)


_TINY = (
    "--num-steps 10 --hidden-size 32 --num-attention-heads 4 --num-key-value-heads 4 "
    "--intermediate-size 64"
)
SCRIPTS = (
    _example("train_resnet_base.py", _RESNET),
    _example("data_parallel/train_resnet_ddp.py", _RESNET, 2),
    _example("data_parallel/train_resnet_xla_ddp.py", _RESNET, 2),
    _example("train_resnet_amp.py", _RESNET),
    _example("debug/train_resnet_benchmark.py", _RESNET),
    _example("train_decoder_only_base.py", _DECODER, args=_TINY),
    _example("eager/train_decoder_only_eager.py", _DECODER),
    _example("eager/train_decoder_only_eager_with_compile.py", _DECODER),
    _example("eager/train_decoder_only_eager_multi_process.py", _DECODER, 2),
    XlaScript("Bihan+tpu-examples", "tpu_toy_sample.py", ranks=2),
    XlaScript("Bihan+tpu-examples", "tpu_xla.py", ranks=2),
    XlaScript(
        "FlappyBob+xla",
        "intro/mnist.py",
        "intro",
        small=(
            ("intro/mnist.py", "batch_size = 256", "batch_size = 8"),
            ("intro/mnist.py", "num_workers=4", "num_workers=0"),
        ),
    ),
    XlaScript(
        "pytorch+xla",
        "test/test_train_mp_mnist.py",
        ranks=2,
        args="--fake_data --num_epochs 1 --batch_size 8",
    ),
    _example("debug/train_resnet_profile.py", _RESNET),
    _example("data_parallel/train_resnet_spmd_data_parallel.py", _RESNET),
    _example("fsdp/train_resnet_fsdp_auto_wrap.py", _RESNET, 2),
)


def prepared(script: XlaScript, repositories: Path, scratch: Path) -> Path:
    """Copy the script with its folder to `scratch`, and make it small; return the copy."""
    source = repositories / script.repository
    top = script.project or str(Path(script.path).parent)
    copy = scratch / "theirs"
    shutil.copytree(source / top, copy / top, ignore=shutil.ignore_patterns("*.png", ".git"))
    smaller(*script.small)(copy)
    return copy


def rewritten(script: XlaScript, copy: Path, scratch: Path) -> tuple[Path, list[str]]:
    """Rewrite the copy; return the result and what is left to do by hand in the script's own files."""
    ours = scratch / "ours"
    shutil.copytree(copy, ours)
    name = script.project or script.path
    into = ours / name
    if script.project:
        shutil.rmtree(into)
    command = [
        sys.executable,
        "-m",
        "migrate",
        "rewrite",
        "--json",
        "--target",
        "torch_tpu",
        "--force",
    ]
    done = subprocess.run(
        [*command, str(copy / name), "-o", str(into)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    told = json.loads(done.stdout)
    if isinstance(told, dict):
        parts = {Path(script.path).relative_to(script.project).as_posix(), *_bases(script)}
        left = [
            note for note in told["left_to_do"] if note.get("file", note.get("path", "")) in parts
        ]
    else:
        left = told[0]["findings"]
    return ours / script.path, [note["message"] for note in left if note["severity"] == "error"]


def _bases(script: XlaScript) -> set[str]:
    return {Path(name).relative_to(script.project).as_posix() for name, _, _ in script.small}


def record(
    python: str,
    side: str,
    script: XlaScript,
    path: Path,
    folder: Path,
    seconds: float,
    *,
    reordered: bool = False,
) -> str:
    """Run one side for ten steps in the environment of `python`; return why it failed, or nothing."""
    folder.mkdir()
    command = [python, __file__, "--record", side, str(path), str(folder), str(script.ranks)]
    command += ["--reordered"] if reordered else []
    command += ["--seconds", str(seconds), "--", *script.args.split()]
    site, root = HERE / "site", HERE.parents[1]
    more = os.environ.get("TORCH_TPU_PYTHONPATH" if side == "tpu" else "TORCH_XLA_PYTHONPATH", "")
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), str(root), more))),
        "PUBLIC_SCRIPTS_SAMPLES": "128",
        "PUBLIC_SCRIPTS_SMALL_RESNET": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "MASTER_PORT": str(free_port()),  # a script's own, 29500, may be in use on this machine
    }
    if side == "xla":  # a known difference of the libraries: batch norm's running variance
        variables["PUBLIC_SCRIPTS_UNBIASED"] = "1"
    if side == "tpu" and "XLA_FLAGS" not in os.environ:  # as `migrate prove` does it for torch_xla
        variables["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    done = subprocess.run(
        command,
        cwd=path.parent,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    errors = [line for line in lines if re.search(r"Error|error:|hangs", line)]
    return (errors or lines or ["no message"])[-1].strip()[:300]


def record_here(
    side: str,
    path: Path,
    folder: Path,
    ranks: int,
    args: list[str],
    seconds: float,
    *,
    reordered: bool,
) -> None:
    """Run one side in this environment."""
    from migrate.prove.proof import record_run
    from migrate.prove.settings import Settings

    settings = Settings(amp="off", steps=STEPS, timeout=seconds)
    record_run(
        path,
        args,
        side=side,  # type: ignore[arg-type]
        replicas=ranks,
        folder=folder,
        settings=settings,
        reordered=reordered,
    )


def judged(theirs: Path, ours: Path, again: Callable[[], Path | None]) -> tuple[str, str]:
    """Compare two recordings; return the verdict and the figures.

    `again` runs the original once more with other rounding, where the sides differ by little or in what they
    print, as rates.
    """
    from migrate.prove.compare.verdict import judge_with_floor
    from migrate.prove.recording import records

    def second() -> dict[int, records.RankRecord] | None:
        folder = again()
        return None if folder is None else records.read(folder)

    judgement = judge_with_floor(records.read(theirs), records.read(ours), second)
    steps = judgement.steps
    figures = []
    for name, values in (
        ("losses", [s.loss_difference for s in steps]),
        ("gradient norms", [s.gradient_difference for s in steps]),
        ("weights", [w.difference for w in judgement.weights if w.gate is not None]),
    ):
        known = [value for value in values if value is not None]
        if known:
            figures.append(f"{name} {max(known):.1e}")
    # Without weights the steps are equal up to the one from which rounding alone decides.
    verdict = judgement.verdict.value
    verdict = "equal" if verdict == "match" else verdict  # the history's word is older
    is_whole = verdict == "equal" and bool(judgement.weights)
    text = "; ".join(figures) if is_whole else judgement.message
    return verdict, text


def moved(script: XlaScript, repositories: Path, python: str, seconds: float) -> dict[str, object]:
    """Move one script and compare both sides; return the line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        copy = prepared(script, repositories, scratch)
        path, left = rewritten(script, copy, scratch)
        line: dict[str, object] = {
            "script": script.name,
            "ranks": script.ranks,
            "left by hand": len(left),
        }
        of_xla = [message for message in left if "torch_xla" in message or "xs." in message]
        why = record(python, "tpu", script, path, scratch / "mine", seconds)
        if why:
            reasons = "; ".join(dict.fromkeys(of_xla)) or why.replace(f"{scratch}/", "")
            return line | {"torch_tpu": REFUSED if of_xla else "fails", "what": reasons[:300]}

        def original(name: str, *, reordered: bool = False) -> str:
            theirs, folder = copy / script.path, scratch / name
            return record(
                sys.executable, "xla", script, theirs, folder, seconds, reordered=reordered
            )

        def again() -> Path | None:
            name = f"again{len([*scratch.glob('again*')])}"
            return None if original(name, reordered=True) else scratch / name

        if why := original("original").replace(f"{scratch}/theirs/", ""):
            return line | {"torch_tpu": "runs", "what": f"the original fails on torch_xla: {why}"}
        verdict, text = judged(scratch / "original", scratch / "mine", again)
        return line | {"torch_tpu": verdict, "what": text}


def main() -> int:
    """Move the scripts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=Path)
    parser.add_argument("--torch-tpu", metavar="PYTHON", help="interpreter with torch_tpu")
    parser.add_argument("--only", default="", help="part of the name of the scripts to run")
    parser.add_argument("--seconds", type=float, default=400, help="for each run")
    parser.add_argument("--record", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--reordered", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("args", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record is not None:
        side, path, folder, ranks = options.record
        record_here(
            side,
            Path(path),
            Path(folder),
            int(ranks),
            options.args,
            options.seconds,
            reordered=options.reordered,
        )
        return 0
    from history import append

    failed = 0
    for script in SCRIPTS:
        if options.only in script.name:
            line = moved(script, options.repositories, options.torch_tpu, options.seconds)
            failed += line["torch_tpu"] not in ("equal", REFUSED)
            print(f"| {' | '.join(map(str, line.values()))} |", flush=True)
            append("torch-xla-scripts", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
