"""The models of docs/gallery in Flax NNX: do they compute the same, and is the source as short as linen's?

    python benchmarks/port_nnx.py [NAME…]

Each is ported with `--api nnx`, run with the weights of the original, and compared with it (relative L2 of
the worst output, float32 against float64). Its lines of code stand beside those of docs/gallery, which are
linen's. Exit code 1 if one differs by more than 1e-5, or if all together are longer than 1.05 × linen's.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "1"}
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.history import append  # noqa: E402
from benchmarks.zoo_models import gallery  # noqa: E402
from benchmarks.zoo_models.measured import code_lines, compared  # noqa: E402
from migrate.port.pipeline import formatted  # noqa: E402

LIMIT, LONGER = 1e-5, 1.05


def main(words: list[str]) -> int:
    """Measure what is asked, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the sources here")
    asked = parser.parse_args(words)
    rows, missed = [], []
    for name in asked.names or list(gallery.PIECES):
        source = ROOT / "docs" / "gallery" / name / "modeling.py"
        if not source.exists() or importlib.util.find_spec(gallery.PIECES[name].needs) is None:
            print(f"{name}: passed over", file=sys.stderr)
            continue
        try:
            worst, text = measured(name)
        except Exception as error:
            print(
                f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True
            )
            missed.append(name)
            continue
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            (asked.keep / f"{name}.py").write_text(text)
        lines, linen = code_lines(text), code_lines(source.read_text())
        rows.append((gallery.PIECES[name].title, worst, lines, linen))
        record(rows[-1])
        missed += [name] if worst > LIMIT else []
        print(f"{name}: {worst:.1e}, {lines} lines, linen {linen}, {lines / linen:.2f}", flush=True)
    total, linens = (sum(row[at] for row in rows) for at in (2, 3))
    ratio = total / max(linens, 1)
    print(f"all: {total} lines, linen {linens}, {ratio:.3f}; missed: {', '.join(missed) or 'none'}")
    if not asked.names:
        append(
            "port-nnx", {"model": "all", "lines": total, "linen": linens, "ratio": f"{ratio:.3f}"}
        )
    return 1 if missed or ratio > LONGER else 0


def record(row: tuple[str, float, int, int]) -> None:
    """Append the figures of a model."""
    title, worst, lines, linen = row
    append(
        "port-nnx",
        {
            "model": title,
            "worst output": f"{worst:.1e}",
            "lines": lines,
            "linen": linen,
            "ratio": f"{lines / linen:.2f}",
        },
    )


def measured(name: str) -> tuple[float, str]:
    """The worst output's relative L2, and the source."""
    from converters.graph import port
    from converters.graph.starts.watch import watching

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watching() as watch:
            model, inputs = gallery.build(name)
        made = port(model, inputs, watch.starts(model), api="nnx")
        worst = compared(made, model, inputs)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "modeling.py").write_text(made.modeling)
        formatted(folder)
        return worst, (folder / "modeling.py").read_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
