"""Do ports with partition rules compute the same on meshes of 8 simulated devices as on one device?

    python benchmarks/port_mesh.py [--only TYPE…] [--again] [--csv benchmarks/port_mesh.csv] [--summary]

The most used types of transformers, tiny and random (`benchmarks/zoo_models/huggingface.py`), are ported
with partition rules. Outputs and gradients of all weights are compared as `migrate port --mesh` does: the
error against float64 is at most 4 times that of one device; a larger one is decided in float64. A row per
type and mesh is added as soon as it is known; a type that has rows is not run again without --again.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path.insert(0, str(Path(__file__).parents[1]))

TYPES = (
    *("llama", "bert", "gpt2", "vit", "mixtral", "qwen2", "qwen3", "mistral", "t5", "roberta"),
    *(
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "opt",
        "bart",
        "clip",
        "siglip",
        "dinov2",
        "whisper",
    ),
    *(
        "wav2vec2",
        "deberta-v2",
        "electra",
        "albert",
        "mpnet",
        "xlm-roberta",
        "distilbert",
        "convnext",
    ),
    *("swin", "resnet"),
)
COLUMNS = (
    *("date", "type", "mesh", "status", "of allowed error", "exchanges"),
    *("weights on a device", "tensor at most", "rules", "seconds"),
)


def main(words: list[str]) -> int:
    """Run what is asked, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--only", nargs="*", default=TYPES)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    done = {row["type"] for row in read(asked.csv)}
    for name in asked.only if not asked.summary else ():
        if name in done and not asked.again:
            continue
        rows = run(name)
        append(asked.csv, rows)
        for row in rows:
            print(*(row[column] for column in COLUMNS[1:6]), flush=True)
    print(summary(asked.csv))
    return 0


def run(name: str) -> list[dict[str, Any]]:
    """The rows of a type."""
    began = time.monotonic()
    first = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "type": name}
    try:
        rows = _run(name)
    except Exception as error:  # whatever a model raises is a row
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        rows = [{"mesh": "", "status": f"not ported: {said}"}]
    seconds = f"{time.monotonic() - began:.0f}"
    return [{**dict.fromkeys(COLUMNS, ""), **first, **row, "seconds": seconds} for row in rows]


def _run(name: str) -> list[dict[str, Any]]:
    import torch

    from benchmarks.zoo_models.huggingface import build
    from benchmarks.zoo_models.proven import write_port
    from converters.graph import port
    from migrate.port.mesh.derive import compare_meshes, write_rules
    from migrate.port.mesh.page import bytes_text, exchanges_text, part_text
    from migrate.port.mesh.source import NAMES, SHARDING, sharding_text
    from migrate.port.texts import package_text
    from migrate.port.unused import unused_paths
    from migrate.port.weights import PARAMS

    torch.set_num_threads(1)
    model, inputs = build(name)
    made = port(model, dict(inputs.items()), constrain=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        place = work / "net"
        write_port(made, model, inputs, place, work)
        (place / SHARDING).write_text(sharding_text(made.model_class, (), ()))
        shapes = {
            key: (tuple(value.shape), value.numpy().dtype.name.replace("64", "32"))
            for key, value in inputs.items()
        }
        names = made.model_class, made.config_class, "a model", shapes
        (place / "__init__.py").write_text(package_text(*names, unused_paths(place), more=NAMES))
        rules = write_rules(place, made)
        arrays = {key: value.numpy() for key, value in inputs.items()}
        runs = compare_meshes(place, place / PARAMS, made, rules, [arrays], work / "runs", 1800)
    return [
        {
            "mesh": mesh.mesh,
            "status": mesh.verdict,
            "of allowed error": part_text(mesh),
            "exchanges": exchanges_text(mesh),
            "weights on a device": bytes_text(mesh),
            "tensor at most": rules.divisors.get("tensor", 1),
            "rules": len(rules.rules),
        }
        for mesh in runs
    ]


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to the file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of the file; of a type that was run again, the last ones."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    latest = {(row["type"], row["mesh"]): row for row in rows}
    return list(latest.values())


def summary(path: Path) -> str:
    """Types and meshes whose outputs and gradients equal those of one device."""
    rows = read(path)
    by_type: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_type.setdefault(row["type"], []).append(row)

    def is_equal(row: dict[str, str]) -> bool:
        return row["status"].startswith(("match", "equal"))  # in older rows: equal

    equal = [name for name, own in by_type.items() if all(map(is_equal, own))]
    meshes = sum(map(is_equal, rows))
    others = [f"{row['type']} {row['mesh']}: {row['status']}" for row in rows if not is_equal(row)]
    head = f"types equal on all meshes: {len(equal)} of {len(by_type)}; meshes: {meshes} of {len(rows)}"
    return "\n".join([head, *others])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
