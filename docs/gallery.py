"""Make the gallery: the source that `migrate port` writes for models by name, each with its proof.

python docs/gallery.py [NAME…]           port them, write docs/gallery/NAME/ and docs/gallery/README.md
python docs/gallery.py --check [NAME…]   write nothing; exit code 1 if one is not what is written now

The models are those of benchmarks/zoo_models/gallery.py. What was measured (relative L2, in float32 on this
machine's CPU) may differ in its digits: a page is made again only where it says something else without them.
One whose package is not installed is passed over.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
# Pieces that are shown in Flax NNX, too.
IN_NNX = ("llama",)
NUMBER = re.compile(r"\d[\d.]*e[-+]?\d+")
# Gemma 3 of transformers goes over a set of the kinds of its layers.
os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "1"}
sys.path.insert(0, str(ROOT))

from benchmarks.zoo_models import gallery  # noqa: E402
from benchmarks.zoo_models.measured import code_lines, compared  # noqa: E402
from migrate.port.pipeline import formatted  # noqa: E402
from migrate.versions import installed  # noqa: E402


def files(name: str) -> dict[str, str]:
    """The files of a piece: its source and its page."""
    from converters.graph import port
    from converters.graph.starts.watch import watching

    piece = gallery.PIECES[name]
    with watching() as watch:
        model, inputs = gallery.build(name)
    made = port(model, inputs, watch.starts(model))
    proof = {
        said: compared(made, model, given) for said, given in gallery.shapes(name, made.inputs)
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "modeling.py").write_text(made.modeling)
        (folder / "config.py").write_text(made.config)
        formatted(folder)
        found = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    if name in IN_NNX:
        in_nnx = port(model, inputs, watch.starts(model), api="nnx")
        proof["as recorded, in Flax NNX"] = compared(in_nnx, model, inputs)
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch) / "modeling.py"
            source.write_text(in_nnx.modeling)
            formatted(source.parent)
            found["nnx/modeling.py"] = source.read_text()
    found["README.md"] = page(piece, model, made, found, proof)
    return found


def page(
    piece: gallery.Piece,
    model: Any,
    made: Any,
    sources: dict[str, str],
    proof: dict[str, float],
) -> str:
    """The page of a piece."""
    source, in_nnx = sources["modeling.py"], sources.get("nnx/modeling.py")
    package = type(model).__module__
    needs = f"{piece.needs} {installed(piece.needs) or ''}".strip()
    shapes = ", ".join(f"`{one.name}` [{', '.join(map(str, one.shape))}]" for one in made.inputs)
    rows = [f"| {said} | {distance:.1e} |" for said, distance in proof.items()]
    lines = [
        f"# {piece.title}",
        "",
        f"`{type(model).__name__}` of `{package}` ({needs}), a small configuration with random weights, as",
        f"`migrate port` writes it: [modeling.py](modeling.py), {code_lines(source)} lines of code, and",
        "[config.py](config.py).",
        *(
            [
                "",
                f"With `--api nnx`: [nnx/modeling.py](nnx/modeling.py), {code_lines(in_nnx)} lines of code",
                "([Flax NNX](../../port/nnx.md)).",
            ]
            if in_nnx
            else []
        ),
        "",
        f"Inputs: {shapes}; what has a name may have any size.",
        "",
        "| compared with torch, float32 | relative L2 of the worst output |",
        "|---|---|",
        *rows,
    ]
    if made.notes:
        lines += ["", *(f"- {NUMBER.sub('…', one.split(' (')[0])}" for one in made.notes)]
    if made.baked:
        fixed = [f"- {one.split(', ')[0]}" for one in made.baked]
        lines += ["", "Numbers that nothing in the original explains by its sizes:", ""]
        lines += dict.fromkeys(fixed)
    return "\n".join(lines) + "\n"


def index() -> str:
    """The page of all."""
    rows = []
    for name, piece in gallery.PIECES.items():
        source = GALLERY / name / "modeling.py"
        if source.exists():
            lines = code_lines(source.read_text())
            rows.append(
                f"| [{piece.title}]({name}/README.md) | {lines} | [source]({name}/modeling.py) |"
            )
    return "\n".join(
        [
            "# Gallery",
            "",
            "Models as `migrate port` writes them, small ones of real architectures; made by `make docs`.",
            "",
            "| model | lines of code | |",
            "|---|--:|---|",
            *rows,
            "",
            "[Llama on 8 devices](llama_mesh/README.md): training with rules, generation, Flax NNX.",
            "",
        ]
    )


def same(one: str, other: str) -> bool:
    """Whether two files say the same but for what was measured."""
    return NUMBER.sub("0", one) == NUMBER.sub("0", other)


def stale(name: str, write: bool) -> list[str]:
    """The files of a piece that are not what is made now; written, if asked."""
    folder, found = GALLERY / name, []
    for file, text in files(name).items():
        path = folder / file
        if path.exists() and same(path.read_text(), text):
            continue
        found.append(f"docs/gallery/{name}/{file}")
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return found


def in_process(name: str, write: bool) -> list[str]:
    """As `stale`, in a process of its own: what one model leaves in memory is not the next one's."""
    said = "write" if write else "say"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", said, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: list[str]) -> int:
    """Make or check the gallery; return the exit code."""
    parser = argparse.ArgumentParser(description="Make the gallery of ports, or check it.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a model; none: all of them")
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    parser.add_argument("--one", choices=("write", "say"), help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if unknown := sorted(set(given.names) - set(gallery.PIECES)):
        parser.error(f"no model is called {', '.join(unknown)}: {', '.join(gallery.PIECES)}")
    if given.one:
        print(json.dumps(stale(given.names[0], given.one == "write")))
        return 0
    check = given.check
    found = []
    for name in given.names or gallery.PIECES:
        if importlib.util.find_spec(gallery.PIECES[name].needs) is None:
            print(f"{name}: passed over, {gallery.PIECES[name].needs} is not installed")
            continue
        found += (made := in_process(name, not check))
        print(f"{name}: {'as it is' if not made else ', '.join(made)}", flush=True)
    if not check:
        (GALLERY / "README.md").write_text(index())
    elif (GALLERY / "README.md").read_text() != index():
        found.append("docs/gallery/README.md")
    for one in found if check else []:
        print(f"{one} is not what is written now: run `make docs`")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
