"""A program of `migrate train` beside a hand-written one and its script: speed, data, kills, lines, names.

    python benchmarks/train_program.py --program FOLDER [--only step|data|kills|lines]
    python benchmarks/train_program.py --program FOLDER --script FILE --only lines [--note TEXT]

FOLDER is what `migrate train benchmarks/t2j/scripts/gpt2_sft.py` wrote; the hand-written program is
benchmarks/t2j/reference/gpt2_sft. With --script it is what the command wrote of another script.
Lines are lines of code, without docstrings and comments. `model.py` does not count: the script has its model
from transformers. Nor do `interface.py` and `test_same.py`, without which the program trains. Names: the
share of the arguments and variables of the program's functions that have a name of the script, as
benchmarks/port_source.py counts them, and the share of the script's names that the program binds.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.history import append  # noqa: E402
from benchmarks.zoo_models.measured import code_lines  # noqa: E402

T2J = ROOT / "benchmarks" / "t2j"
SCRIPT, REFERENCE = T2J / "scripts" / "gpt2_sft.py", T2J / "reference" / "gpt2_sft"
ROUNDS, KILLS = 12, 10
# Files that `migrate train` writes alike into each program: checkpoints, devices.
CARRIED = ("checkpoints.py", "devices.py")
# Files whose functions come from the script.
FROM_SCRIPT = ("loss.py", "functions.py", "optimizer.py", "data.py")
UNCOUNTED = ("model.py", "interface.py", "test_same.py")

# A round of a measure for each line that it reads: seconds, and what has to be equal.
_CHILD = """
import pickle, sys, time
from pathlib import Path

folder, what, shared = sys.argv[1], sys.argv[2], Path(sys.argv[3])
sys.path.insert(0, folder)
import data, interface, jax, train

if what == "step":
    if not shared.exists():  # the program comes first
        micro = next(iter(data.batches()))
        shared.write_bytes(pickle.dumps((micro, interface.weights(train.load()))))
    micro, weights = pickle.loads(shared.read_bytes())
    state = interface.load(weights)
    state, losses, _ = train.train_step(state, micro)
    first = sum(map(float, losses))

    def measured():
        global state
        times = []
        for _ in range(220):
            begin = time.perf_counter()
            state, losses, _ = train.train_step(state, micro)
            jax.block_until_ready((state.params, losses))
            times.append(time.perf_counter() - begin)
        return sorted(times[20:])[20], first
else:

    def rows():
        if hasattr(data, "batches"):
            return sum(len(micro) for micro in data.batches())
        return sum(1 for _ in range(data.max_epochs) for _ in data.train_loader())

    def measured():
        times = []
        for _ in range(8):
            begin = time.perf_counter()
            count = rows()
            times.append(time.perf_counter() - begin)
        return min(times), count

print("ready", flush=True)
for _ in sys.stdin:
    print(*measured(), flush=True)
"""
# A run that prints every bit of the losses of each update, whatever the program itself prints.
_RUN = """
import sys

sys.path.insert(0, ".")
import train

def report(number, losses, *more):
    print(f"update {number}:", *(float(loss).hex() for loss in losses), flush=True)

train.report = report
train.main()
"""


def main() -> None:
    """Measure, print, and append a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--only", choices=["step", "data", "kills", "lines"])
    parser.add_argument("--script", type=Path, default=SCRIPT)
    parser.add_argument("--note", default="")
    asked = parser.parse_args()
    if asked.script != SCRIPT and asked.only != "lines":
        parser.error(
            "--script needs --only lines: the other measures need the hand-written program"
        )
    program = asked.program.resolve()
    of_script = functools.partial(lines, script=asked.script)
    measures = {"step": step, "data": loading, "kills": kills, "lines": of_script}
    for name, measure in measures.items():
        if asked.only in (None, name):
            for row in measure(program):
                print(row, flush=True)
                append("train-program", row, note=asked.note)


def step(program: Path) -> Iterator[dict[str, object]]:
    """An update under jit, beside the hand-written one: tenth percentile of 200, least of the rounds."""
    ours, theirs = alternating(program, "step")
    note = f"{ours * 1e3:.2f} and {theirs * 1e3:.2f} ms"
    yield row("update under jit ÷ hand-written JAX", ours / theirs, "at most 1.05", note)


def loading(program: Path) -> Iterator[dict[str, object]]:
    """Batches in a second, beside those of the script's DataLoader alone: three epochs, least of rounds."""
    ours, theirs = alternating(program, "data")
    note = f"three epochs in {ours * 1e3:.1f} and {theirs * 1e3:.1f} ms, without worker processes"
    what = "batches a second ÷ the script's DataLoader alone"
    yield row(what, theirs / ours, "at least 1.0", note)


def alternating(program: Path, what: str) -> tuple[float, float]:
    """Least seconds of the program and of the hand-written one, measured in turn.

    Each is one process that waits while the other is measured: starts and compilations take a minute.
    """
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        shared = Path(folder) / "weights.pickle"
        pair = [stack.enter_context(child(p, what, shared)) for p in (program, REFERENCE)]
        for _ in range(ROUNDS):
            (ours, value), (theirs, other) = (answer(process) for process in pair)
            if abs(value - other) > 1e-3 * abs(other):
                raise SystemExit(f"the two do not compute the same: {value} and {other}")
            times.append((ours, theirs))
    return min(a for a, _ in times), min(b for _, b in times)


@contextlib.contextmanager
def child(folder: Path, what: str, shared: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that is ready to be measured."""
    command = [sys.executable, "-c", _CHILD, str(folder), what, str(shared)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{folder} does not run")
        yield process


def answer(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Seconds of a round, and what has to be equal."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    seconds, value = process.stdout.readline().split()
    return float(seconds), float(value)


def environment() -> dict[str, str]:
    """The environment of the programs."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def kills(program: Path) -> Iterator[dict[str, object]]:
    """A run that is killed (SIGKILL) at random updates, and started again each time."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole, code = run(program, ["--save", str(place / "whole")])
        if code:
            raise SystemExit("the program does not run")
        equal, losses = 0, dict[int, str]()
        words = ["--checkpoints", str(place / "run"), "--every", "2", "--save", str(place / "last")]
        for update in sorted(random.Random(40).sample(range(2, max(whole)), KILLS)):
            seen, _ = run(program, words, update)
            equal += all(whole[number] == text for number, text in seen.items()) and bool(seen)
            losses |= seen
        seen, _ = run(program, words)
        losses |= seen
        same = losses == whole and (place / "last").read_bytes() == (place / "whole").read_bytes()
    note = f"killed {KILLS} times in one training of {len(whole)} updates, a checkpoint every 2; "
    note += f"final weights {'equal bit for bit' if same else 'differ'}"
    yield row(
        "killed at random updates, the same losses after it", f"{equal} of {KILLS}", "all", note
    )


def run(
    program: Path, words: Sequence[str], until: int | None = None
) -> tuple[dict[int, str], int]:
    """Losses of the updates as they are printed, and the exit code; killed once `until` is printed."""
    command = [sys.executable, "-c", _RUN, *words]
    losses = {}
    with subprocess.Popen(
        command, cwd=program, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"update (\d+): (.*)", line):
                losses[int(found[1])] = found[2]
                if until is not None and int(found[1]) >= until:
                    process.kill()
                    break
        process.stdout.close()
    return losses, process.returncode


def lines(program: Path, script: Path = SCRIPT) -> Iterator[dict[str, object]]:
    """Lines of code of the program, of the hand-written one and of the script, without the model; names."""
    for measured in _lines(program, script.read_text(), with_reference=script == SCRIPT):
        if script != SCRIPT:
            measured["what"] = f"{measured['what']}: {script.stem}"
        yield measured


def _lines(program: Path, script: str, *, with_reference: bool) -> Iterator[dict[str, object]]:
    of_script = code_lines(script)
    files = {f.name: f.read_text() for f in program.glob("*.py") if f.name not in UNCOUNTED}
    own = sum(code_lines(text) for name, text in files.items() if name not in CARRIED)
    carried = sum(code_lines(text) for name, text in files.items() if name in CARRIED)
    note = f"{own} lines in all but {', '.join(CARRIED)}, {carried} in these; the script has {of_script}"
    yield row(
        "lines of the program ÷ lines of the script",
        (own + carried) / of_script,
        "at most 1.0",
        note,
    )
    yield row("the same, without the files that all programs have", own / of_script, "at most 1.0")
    if with_reference:
        by_hand = sum(
            code_lines(f.read_text()) for f in REFERENCE.glob("*.py") if f.name not in UNCOUNTED
        )
        yield row(
            "lines of the hand-written program ÷ lines of the script", by_hand / of_script, ""
        )
    wanted, there = names(script), set[str]().union(*map(names, files.values()))
    from_script = [files[name] for name in FROM_SCRIPT if name in files]
    values = [value for text in from_script for value in values_of(text)]
    named = [value for value in values if re.sub(r"_\d+$|_$", "", value) in wanted]
    yield row(
        "names in the program that are the script's",
        len(named) / len(values),
        "at least 0.9",
        f"{len(values)} in {', '.join(FROM_SCRIPT)}; others: {', '.join(sorted({*values} - {*named}))}",
    )
    lost = sorted(wanted - there)
    yield row(
        "names of the script that the program has",
        len(wanted & there) / len(wanted),
        "at least 0.9",
        f"of {len(wanted)}; not there: {', '.join(lost)}",
    )


def values_of(source: str) -> Iterator[str]:
    """Arguments and variables of each function, each once."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
            stored = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
            yield from stored | {a.arg for a in function.args.args} - {"self", "_"}


def names(source: str) -> set[str]:
    """Names that a source binds: variables, arguments, functions, classes, attributes of `self`."""
    result = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            result.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            result.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.add(node.name)
    return result - {"_", "self"}


def row(what: str, figure: float | str, goal: str, note: str = "") -> dict[str, object]:
    """A line of the history."""
    shown = f"{figure:.2f}" if isinstance(figure, float) else figure
    return {"what": what, "figure": shown, "goal": goal, "detail": note}


if __name__ == "__main__":
    main()
