"""Make docs/gallery/llama_mesh: a Llama that trains on 8 devices, generates, and runs in Flax NNX.

python docs/gallery_mesh.py             port it, run the page's programs, write what they print
python docs/gallery_mesh.py --check     write nothing; exit code 1 if the page says something else

Losses are those of this machine's CPU: `--check` allows the rounding of bfloat16.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "gallery" / "llama_mesh"
OPTIONS = {"llama_mesh": "--mesh", "llama_cache": "--cache", "llama_nnx": "--api nnx"}
# Files of the ports that the page shows.
SHOWN = {"sharding.py": "llama_mesh", "generate.py": "llama_cache"}
COMMAND = "migrate port model.py:llama --inputs 'input_ids=int64[2,8]<128' -o ported --no-proof"
LOSS = re.compile(r"\d+\.\d{3}")
# Relative rounding of a number in bfloat16.
ROUNDING = 2**-8


def run(command: list[str], folder: Path) -> str:
    """What a command prints in the page's folder."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-3000:]}")
    return done.stdout


def files() -> dict[str, str]:
    """The files of the page that are made."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, option in OPTIONS.items():
            inputs = ["--inputs", "input_ids=int64[2,8]<128", "-o", scratch, "--no-proof"]
            words = ["port", "model.py:llama", *inputs, "--name", name, *option.split()]
            run(["-m", "migrate", *words], folder)
        shown = {file: (folder / name / file).read_text() for file, name in SHOWN.items()}
        printed = {program: run([program], folder) for program in ("train.py", "serve.py")}
    return {**shown, "README.md": page(printed)}


def page(printed: dict[str, str]) -> str:
    """The text of the page."""
    ports = [f"$ {COMMAND} --name {name} {option}" for name, option in OPTIONS.items()]
    return "\n".join(
        [
            "# Llama on 8 devices",
            "",
            "A small Llama with random weights ([model.py](model.py)), ported three times: with partition",
            "rules ([sharding.py](sharding.py)), with a cache ([generate.py](generate.py)), and in Flax NNX.",
            "",
            "```console",
            *ports,
            "```",
            "",
            "[train.py](train.py) trains in bfloat16 on 8 simulated devices (`fsdp=4, tensor=2`), and on "
            "one:",
            "",
            "```console",
            "$ PYTHONPATH=ported python train.py",
            *printed["train.py"].splitlines(),
            "```",
            "",
            "[serve.py](serve.py) generates tokens, and compares the outputs of Flax NNX:",
            "",
            "```console",
            "$ PYTHONPATH=ported python serve.py",
            *printed["serve.py"].splitlines(),
            "```",
            "",
        ]
    )


def is_same(text: str, other: str) -> bool:
    """Whether two texts are the same but for the rounding of losses."""
    if LOSS.sub("", text) != LOSS.sub("", other):
        return False
    pairs = zip(LOSS.findall(text), LOSS.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=ROUNDING) for a, b in pairs)


def main(words: list[str]) -> int:
    """Make or check the page; return the exit code."""
    check, stale = words == ["--check"], []
    for file, text in files().items():
        path = FOLDER / file
        if path.exists() and is_same(path.read_text(), text):
            continue
        stale.append(file)
        if not check:
            path.write_text(text)
    for file in stale:
        print(
            f"docs/gallery/llama_mesh/{file} is {'not what is written now' if check else 'written'}"
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
