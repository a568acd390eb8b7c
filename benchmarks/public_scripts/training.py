"""Put public training scripts, unedited, through `migrate train`, and note what became of each.

    python benchmarks/public_scripts/training.py --repositories DIR [--only NAME] [--updates N]
        [--devices N] [--ranks N]

DIR holds checkouts named OWNER+NAME, and `cases+NAME`; `examples/` are those of this project. No edit is made
by hand. Each script is run in a copy, on small data; what stands in for data or a network is said in its
line. A verdict is "same", "different", "does not run", "refused" with the message, or "time". The figures
are the largest relative differences of `migrate train`. With --devices 8, a program that is the same trains
again on 8 simulated devices: the largest relative difference of its weights from those of one device. Weights
whose gradient is rounding in all updates are named and left out. The same in float64 shows what is rounding.
With --ranks 2, a program with the batch of two ranks is compared with the script on two ranks (`ranks.py`).

Scripts need torchvision, timm, diffusers, hydra-core, boto3, wandb, coolname, argdantic, tiktoken, rustbpe
and pyarrow beside this project.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(Path(__file__).parent)]

from corpora import HOME, RANDOM_TEXT, autoresearch, nanochat, puzzles  # noqa: E402
from history import append  # noqa: E402
from places import prepared  # noqa: E402
from ranks import beside_devices, beside_ranks  # noqa: E402
from scripts import DATA, SCRIPTS, Script, smaller  # noqa: E402

# What `migrate train` says, in the word that the history has.
_OF_HISTORY = {"match": "same", "differs": "different"}
_KNOWN = {script.name: script for script in SCRIPTS}
_MINGPT = _KNOWN["pytorch/examples distributed/minGPT-ddp/mingpt/main.py"]
_GPT = _KNOWN["karpathy/nanoGPT train.py"]
_DINO = _KNOWN["facebookresearch/dino main_dino.py"]

# The 14 scripts of the measure.
TRAINED = (
    Script(
        "karpathy+nanoGPT",
        "train.py",
        "config/train_shakespeare_char.py --max_iters=60 --eval_interval=25 --eval_iters=1 "
        "--batch_size=4 --block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --compile=False "
        "--gradient_accumulation_steps=2 --log_interval=10 --device=cpu --dtype=float32",
        stands_in=_GPT.stands_in,
        prepare=_GPT.prepare,
    ),
    Script(
        "pytorch+examples",
        "distributed/minGPT-ddp/mingpt/main.py",
        _MINGPT.args.replace("max_epochs=1", "max_epochs=5") + " trainer_config.use_amp=False",
        torchrun=True,
        stands_in=f"{_MINGPT.stands_in}; torch.accelerator.device_count: 2",
        devices=2,
        prepare=_MINGPT.prepare,
    ),
    Script(
        "pytorch+examples",
        "imagenet/main.py",
        "{data} -a resnet18 -b 8 -j 0 --epochs 10 --lr 0.00001 --seed 1",
        stands_in=f"{DATA}; 64 of 224 pixels",
        prepare=smaller(
            ("imagenet/main.py", "RandomResizedCrop(224)", "RandomResizedCrop(64)"),
            ("imagenet/main.py", "CenterCrop(224)", "CenterCrop(64)"),
        ),
    ),
    Script(
        "pytorch+examples",
        "mnist/main.py",
        "--epochs 3 --batch-size 16 --test-batch-size 16 --no-accel",
        stands_in=DATA,
        samples=304,
    ),
    Script(
        "facebookresearch+dino", _DINO.path, _DINO.args, stands_in=_DINO.stands_in, torchrun=True
    ),
    Script(
        "facebookresearch+DiT",
        "train.py",
        "--data-path {data}/train --model DiT-S/8 --global-batch-size 4 --epochs 30 --num-workers 0 "
        "--results-dir {out}",
        torchrun=True,
        stands_in=f"{DATA}; AutoencoderKL.from_pretrained: random weights, 8 channels; 2 of 12 blocks",
        prepare=smaller(
            (
                "models.py",
                "DiT(depth=12, hidden_size=384, patch_size=8",
                "DiT(depth=2, hidden_size=384, patch_size=8",
            )
        ),
    ),
    Script(
        "pytorch+examples",
        "dcgan/main.py",
        "--dataset fake --niter 1 --batchSize 4 --imageSize 64 --ngf 8 --ndf 8 --workers 0 "
        "--outf {out} --manualSeed 1",
        stands_in=DATA,
    ),
    Script(
        "pytorch+examples",
        "vae/main.py",
        "--epochs 3 --batch-size 16 --no-accel",
        stands_in=DATA,
        samples=304,
    ),
    Script("examples", "transformer/before.py", "--epochs 4", torchrun=True),
    Script("cases+gpt_trainer", "main.py", "--max_iters 60 --grad_accum 2 --batch_size 2"),
    Script("cases+vit_small_data", "train.py", "--epochs 4", torchrun=True),
    Script(
        "karpathy+autoresearch",
        "train.py",
        stands_in=f"{RANDOM_TEXT}; 2 of 8 layers, narrow, 32 of 2048 tokens; kernels: torch's attention",
        prepare=autoresearch,
    ),
    Script(
        "karpathy+nanochat",
        "scripts/base_train.py",
        "--depth=2 --aspect-ratio=16 --head-dim=16 --max-seq-len=32 --device-batch-size=2 "
        "--total-batch-size=128 --num-iterations=60 --eval-every=-1 --core-metric-every=-1 "
        "--sample-every=-1 --window-pattern=SL",
        stands_in=RANDOM_TEXT,
        prepare=nanochat,
        folder=".",
    ),
    Script(
        "SamsungSAILMontreal+TinyRecursiveModels",
        "pretrain.py",
        "data_paths=[{repository}/puzzles] evaluators=[] global_batch_size=4 epochs=2 eval_interval=1 "
        "lr_warmup_steps=4 arch.hidden_size=32 arch.num_heads=2 arch.H_cycles=2 arch.L_cycles=2 "
        "arch.puzzle_emb_ndim=0 arch.puzzle_emb_len=0 arch.forward_dtype=float32 "
        "+checkpoint_path={out}",
        stands_in="data set: random puzzles; wandb: disabled; adam_atan2: the same update by torch",
        prepare=puzzles,
    ),
)


# Scripts whose ranks read together what one process reads with a larger batch: arguments of the program, and
# of each of two ranks. Batches of a script that draws them by rank are others.
_NO_DROPOUT = " ".join(f"+gpt_config.{part}_pdrop=0." for part in ("embd", "resid", "attn"))
RANKED = {
    "examples transformer/before.py": ("--examples 512 --batch-size 16", "--examples 512"),
    "cases/vit_small_data train.py": ("--batch-size 16", "--batch-size 8"),
    _MINGPT.name: (
        f"data_config.train_split=0.858 {_NO_DROPOUT}",
        f"data_config.train_split=0.858 {_NO_DROPOUT} trainer_config.batch_size=8",
    ),
}
_ONE_PROCESS = "the script has one process"
_BY_RANK = "each rank seeds its own random numbers, which one process does not draw"
NOT_RANKED = {
    _GPT.name: _BY_RANK,
    _DINO.name: _BY_RANK,
    "facebookresearch/DiT train.py": _BY_RANK,
    "pytorch/examples imagenet/main.py": "each rank normalizes its own batch",
    "pytorch/examples mnist/main.py": _ONE_PROCESS,
    "pytorch/examples dcgan/main.py": _ONE_PROCESS,
    "pytorch/examples vae/main.py": _ONE_PROCESS,
    "cases/gpt_trainer main.py": _BY_RANK,
}


def main() -> None:
    """Run the scripts that are asked for, and append a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0, choices=[0, 2])
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    asked = parser.parse_args()
    for script in TRAINED:
        if asked.only and not any(name in script.name for name in asked.only):
            continue
        row = outcome(script, asked)
        print(json.dumps(row), flush=True)
        append("train-scripts", row)


def outcome(script: Script, asked: argparse.Namespace) -> dict[str, object]:
    """What `migrate train` makes of a script."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="public-training-") as folder:
        scratch = Path(folder)
        repositories = ROOT if script.repository == "examples" else asked.repositories
        place = prepared(script, repositories, scratch)
        program = (asked.keep or scratch) / re.sub(r"\W+", "_", script.name)
        command = [sys.executable, "-m", "migrate", "train", str(place.repository / script.path)]
        command += ["-o", str(program), "--force", "--force", "--updates", str(asked.updates)]
        of_all, of_rank = RANKED.get(script.name, ("", "")) if asked.ranks else ("", "")
        args = place.args(f"{script.args} {of_all}")
        command += ["--timeout", str(asked.seconds), "--json", "--", *args]
        environment = {**os.environ, **place.variables, "WANDB_MODE": "disabled"}
        if (home := place.repository / HOME).exists():
            environment["HOME"] = str(home)
        if script.torchrun:
            ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            port = place.args("{port}")[0]
            environment |= {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        try:
            done = subprocess.run(
                command,
                cwd=place.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=asked.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _row(script, "time", begin)
        said = f"{done.stdout}\n{done.stderr}".replace(str(place.repository), script.repository)
        if done.returncode not in (0, 1) or not done.stdout.lstrip().startswith("{"):
            return _row(script, "refused", begin, what=_last(said))
        found = json.loads(done.stdout)
        if asked.devices and found["verdict"] == "match":
            found |= beside_devices(
                program.resolve(),
                devices=asked.devices,
                updates=asked.updates,
                seconds=asked.seconds,
                folder=place.folder,
                environment=environment,
            )
        if asked.ranks and script.name not in RANKED:
            found["ranks"] = NOT_RANKED.get(script.name, "not set up")
        elif asked.ranks and found["verdict"] == "match":
            found |= beside_ranks(
                place.repository / script.path,
                place.args(f"{script.args} {of_rank}"),
                program.resolve(),
                ranks=asked.ranks,
                devices=asked.devices or 8,
                updates=asked.updates,
                seconds=asked.seconds,
                folder=place.folder,
                environment=environment,
            )
        return _row(script, "", begin, found)


def _row(
    script: Script,
    verdict: str,
    begin: float,
    found: dict[str, object] | None = None,
    what: str = "",
) -> dict[str, object]:
    found = found or {}
    compared: list[dict[str, object]] = found.get("comparisons", [])  # type: ignore[assignment]
    worst: dict[str, object] = {}
    for comparison in compared:
        worst[str(comparison["name"])] = comparison["largest_difference"]
    differs = [str(c["name"]) for c in compared if not c["same"]]
    return {
        "script": script.name,
        "verdict": verdict or _OF_HISTORY.get(str(found["verdict"]), found["verdict"]),
        "what": what or found.get("error") or ", ".join(differs),
        **{name: _shown(worst.get(name)) for name in ("gradients", "losses", "weights")},
        "devices": _shown(found.get("devices")) or found.get("devices", ""),
        "ranks' losses": _shown(found.get("ranks' losses")),
        "ranks' weights": _shown(found.get("ranks' weights")),
        "ranks": found.get("ranks", ""),
        "devices in float64": _shown(found.get("devices in float64"))
        or found.get("devices in float64", ""),
        "rounding alone": found.get("rounding alone", ""),
        "left by hand": len(found.get("left", [])) if found else "",  # type: ignore[arg-type]
        "seconds": round(time.monotonic() - begin),
        "stands in": script.stands_in,
    }


def _shown(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, float) else ""


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error")]
    return (errors or lines or [""])[-1][:300]


if __name__ == "__main__":
    main()
