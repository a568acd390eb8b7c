"""The PyTorch modules on which MaxCode is evaluated, ported and proven at the first try.

    python benchmarks/maxcode.py CHECKOUT [NAME…] [--seconds N] [--csv FILE]

CHECKOUT is one of AI-Hypercomputer/accelerator-agents; its MaxCode/evaluation has 12 files with 13 models.
Each is made with the sizes of its own test there and given to `migrate port` once, with inputs of the shapes
of that test: eight of the distributions of docs/parity/inputs.md, and adjacency matrices of 0 and 1 for the
graph convolution. Nothing is tuned between tries.

Prints a row for each model; `--csv benchmarks/maxcode.csv` appends the rows to that file. Exit code 1 unless
all are proven.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = "MaxCode/evaluation/code_agent/pytorch_references/level2"
# Adjacency matrices of graphs, as the test of that module has them.
_GRAPHS = """
def inputs():
    random = numpy.random.default_rng(0)
    for _ in range(8):
        nodes = random.standard_normal((10, 5), dtype=numpy.float32)
        edges = random.integers(0, 2, (10, 10)).astype(numpy.float32)
        yield {"node_features": nodes, "adj_matrix": edges}
"""


@dataclass(frozen=True)
class Model:
    """One model: its file and class, the arguments of its constructor and its inputs as its test has them."""

    file: str
    name: str
    arguments: str
    inputs: tuple[str, ...]
    code: str = ""


MODELS = (
    Model("MLP", "CreditScoringMLP", "20", ("x=float32[4,20]",)),
    Model("encoder", "TransformerModel", "1000, 64, 4, 128, 2", ("src=int64[4,16]<1000",)),
    Model("generative_adversarial_network", "Generator", "100, (1, 28, 28)", ("z=float32[4,100]",)),
    Model(
        "generative_adversarial_network", "Discriminator", "(1, 28, 28)", ("img=float32[4,784]",)
    ),
    Model(
        "lstm_attention_forecaster", "LSTMAttentionForecaster", "5, 10, 3", ("x=float32[4,8,5]",)
    ),
    Model(
        "self_attention",
        "SelfAttention",
        "32, 4",
        (
            *(f"{name}=float32[2,10,32]" for name in ("values", "keys", "query")),
            "mask=ones:float32[2,1,1,10]",
        ),
    ),
    Model("simple_CNN", "SimpleCNN", "", ("x=float32[4,3,32,32]",)),
    Model("GRU", "GRUForecaster", "5, 10, 2, 3", ("x=float32[4,8,5]",)),
    Model("lstm_forecaster", "LSTMForecaster", "5, 10, 2, 3", ("x=float32[4,8,5]",)),
    Model("simple_RNN", "SimpleRNN", "4, 8, 2, 3", ("x=float32[2,5,4]",)),
    Model("TCU", "TemporalBlock", "10, 20, 3, 1, 2, 4", ("x=float32[4,10,32]",)),
    Model("VAE", "VAE", "784, 128, 10", ("x=float32[4,784]",)),
    Model("graph_convolution", "GraphConvolution", "5, 8", (), _GRAPHS),
)


@dataclass(frozen=True)
class Row:
    """What became of a model.

    Attributes:
        date: of the run.
        checkout: its commit.
        model: the class.
        verdict: "ported", or why not, in one line.
        float32, gradients, tpu: relative L2 of the worst output (gradient) against float64.
        training: that of the worst gradient in training mode; None: it has no other mode.
        bfloat16: the port's error there, as a multiple of the original's own; None: that does not run in it.
        init: "equal", or how many arrays start otherwise, or differ.
        lines: of modeling.py.
        seconds: of the whole command.
    """

    date: str
    checkout: str
    model: str
    verdict: str
    float32: float | None
    gradients: float | None
    tpu: float | None
    training: float | None
    bfloat16: float | None
    init: str
    lines: int | None
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether every comparison speaks for it."""
        return self.verdict == "ported"


def main(words: list[str]) -> int:
    asked = _asked(words)
    folder = asked.checkout / FOLDER
    if not folder.is_dir():
        print(f"{asked.checkout}: has no folder {FOLDER}", file=sys.stderr)
        return 2
    names = [model.name for model in MODELS]
    if unknown := [name for name in asked.names if name not in names]:
        print(f"{unknown[0]}: no such model; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    rows = []
    heads = ("float32", "gradients", "TPU's precision", "training", "bfloat16", "init", "lines")
    print(f"| model | verdict | {' | '.join(heads)} | seconds |")
    print(f"|---|---|{'--:|' * (len(heads) + 1)}")
    for model in MODELS:
        if asked.names and model.name not in asked.names:
            continue
        rows.append(_row(model, folder, _commit(asked.checkout), asked.seconds, asked.keep))
        print(_line(rows[-1]), flush=True)
    print(f"\nproven: {sum(row.proven for row in rows)} of {len(rows)}")
    if asked.csv is not None:
        _append(asked.csv, rows)
    return 0 if all(row.proven for row in rows) else 1


def _asked(words: list[str]) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--keep", type=Path, help="A folder in which the ports stay.")
    return parser.parse_args(words)


def _row(model: Model, folder: Path, commit: str, seconds: float, keep: Path | None) -> Row:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        factory = work / "factory.py"
        factory.write_text(
            f"import sys\nimport numpy\nsys.path.insert(0, {str(folder.resolve())!r})\n"
            f"from {model.file} import {model.name}\n\n"
            f"def build():\n    return {model.name}({model.arguments})\n{model.code}"
        )
        specs = model.inputs or (f"{factory}:inputs",)
        command = [
            *(sys.executable, "-m", "migrate", "port", f"{factory}:build", "--json"),
            *("--name", model.name.lower(), "-o", str((keep or work / "ports").resolve())),
            *("--force", "--force"),
            *(word for spec in specs for word in ("--inputs", spec)),
        ]
        start = time.perf_counter()
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=seconds,
                cwd=work,
                env=environment | {"PYTHONPATH": str(ROOT)},
                check=False,
            )
        except subprocess.TimeoutExpired:
            said: dict[str, Any]
            verdict, said = f"took more than {seconds:.0f} s", {}
        else:
            verdict, said = _said(done)
        spent = time.perf_counter() - start
        file = Path(said["folder"]) / "modeling.py" if said else None
        lines = len(file.read_text().splitlines()) if file is not None else None
    worst = {case["name"]: _worst(case) for case in said.get("proof", ())}
    return Row(
        datetime.now(UTC).date().isoformat(),
        commit,
        model.name,
        verdict,
        worst.get("float32"),
        worst.get("gradients"),
        worst.get("the precision of a TPU, emulated"),
        worst.get("training mode"),
        _times(said),
        _start(said),
        lines,
        round(spent, 1),
    )


def _said(done: subprocess.CompletedProcess[str]) -> tuple[str, dict[str, Any]]:
    if not done.stdout.strip():
        last = done.stderr.strip().splitlines()[-2:]
        return " ".join(last) or f"ended with {done.returncode}", {}
    said: dict[str, Any] = json.loads(done.stdout)
    if "verdict" not in said:
        return " ".join(done.stderr.strip().splitlines()[-2:]), {}
    wrong = [case for case in said["proof"] if not case["matches"]]
    wrong += [case | {"name": case["setting"]} for case in said["bfloat16"] if not case["matches"]]
    why = f" ({wrong[0]['name']}: {wrong[0].get('error') or wrong[0]['verdict']})" if wrong else ""
    return f"{said['verdict']}{why}", said


def _worst(case: dict[str, Any]) -> float | None:
    gradient = case.get("worst_gradient")
    found = gradient["relative_l2"] if isinstance(gradient, dict) else case.get("relative_l2")
    return found if isinstance(found, float) else None


def _times(said: dict[str, Any]) -> float | None:
    """The larger of the two settings' errors, as a multiple of the original's own."""
    pairs = [(one["port"], one["original"]) for one in said.get("bfloat16", ())]
    return max((round(port / own, 2) for port, own in pairs if port and own), default=None)


def _start(said: dict[str, Any]) -> str:
    start = said.get("initialization")
    if start is None:
        return ""
    if start["error"] or start["differs"]:
        return start["error"] or f"{len(start['differs'])} differ"
    return f"{len(start['otherwise'])} otherwise" if start["otherwise"] else "equal"


def _line(row: Row) -> str:
    figures = (row.float32, row.gradients, row.tpu, row.training)
    cells = [row.model, row.verdict, *("" if one is None else f"{one:.1e}" for one in figures)]
    cells += ["" if row.bfloat16 is None else f"{row.bfloat16:.2f}", row.init]
    cells += [str(row.lines or ""), f"{row.seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _append(file: Path, rows: list[Row]) -> None:
    new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, [one.name for one in fields(Row)])
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
