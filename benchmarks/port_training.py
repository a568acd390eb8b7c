"""Which transformers types are ported so that they train as the original does.

    python benchmarks/port_training.py [TYPE…] [--kind base|head] [--csv FILE] [--seconds N] [--minutes N]
                                       [--sample N] [--seed S] [--again VERDICT…] [--keep FOLDER]
                                       [--summary]

Each type is built tiny (benchmarks/zoo_models/training.py), all its dropouts at a rate of 0.1, and given to
`migrate port` in a process of its own, with eight batches of inputs; `--kind head` takes a class with a loss,
and gives it labels. Four comparisons of its proof are made: evaluation and training mode (outputs, gradients
of all parameters), bfloat16, and `init`. What is tried at a second size and in other shapes is left out.

`--sample N` takes N types of the table by chance, the same for one seed; what it prints are then the shares
of these alone.

A row is added to the CSV as soon as it is known; a type with one is passed over, unless its verdict is named
with --again. `--minutes` ends the run in good time. Prints the shares of what was tried; exit code 1 if
something differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not for whoever imports it: the tests ask a hub of their own
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.zoo_models import training  # noqa: E402

FILE = Path(__file__).with_suffix(".csv")
PRELOADED = ["torch", "numpy", "jax", "flax.linen", "sympy", "torch.export", "transformers"]
_COMPARED = frozenset({"gradients", "training mode", "bfloat16", "initialization"})
_FACTORY = """
from benchmarks.zoo_models import training


def build():
    return training.built({name!r}, {head!r})


def inputs():
    for made in training.batches(build().eval(), {name!r}):
        yield {{key: one.numpy() for key, one in made.items()}}
"""
YES, NO, NONE = "yes", "no", ""


@dataclass(frozen=True)
class Row:
    """What became of a type; "" is what was not come to.

    Attributes:
        type: of transformers.
        kind: "base" or "head".
        model: its class.
        ported: yes, or why there is no source, or "time".
        mode: "both": dropouts, or statistics of the batch, are in the source; "same": training is
            evaluation; "refused": by name, and the port is that of evaluation.
        evaluation: whether outputs and gradients in evaluation are equal.
        training: whether outputs, gradients, statistics and draws in training are equal (where training is
            evaluation, the gradients of that).
        gradient: relative L2 of the worst gradient.
        bfloat16: whether both settings are within 1.5 times torch's own error.
        times: the larger of the settings' errors there, as a multiple of torch's own.
        init: whether all arrays start by the original's distributions.
        seconds: of all of it.
        reason: what differs, the first of each.
    """

    type: str
    kind: str
    model: str = ""
    ported: str = ""
    mode: str = ""
    evaluation: str = ""
    training: str = ""
    gradient: str = ""
    bfloat16: str = ""
    times: str = ""
    init: str = ""
    seconds: str = ""
    reason: str = ""

    @property
    def verdict(self) -> str:
        """One word for --again."""
        if self.ported != YES:
            return "refused" if self.ported not in ("time", "crash", "none") else self.ported
        if NO in (self.evaluation, self.training, self.bfloat16, self.init):
            return "differs"
        return "evaluation" if self.mode == "refused" else YES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--kind", choices=("base", "head"), default="base")
    parser.add_argument("--csv", type=Path, default=FILE)
    parser.add_argument("--seconds", type=float, default=240.0, help="for one type")
    parser.add_argument("--minutes", type=float, help="after which no other type is begun")
    parser.add_argument("--sample", type=int, help="number of types, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument("--again", nargs="*", default=[], help="verdicts, or all")
    parser.add_argument("--keep", type=Path, help="a folder in which the ports stay")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    asked = parser.parse_args()
    known = training.rows()
    if unknown := sorted(set(asked.types) - set(known)):
        print(f"{unknown[0]}: no such type in {training.TABLE.name}", file=sys.stderr)
        return 2
    names = asked.types or list(known)
    if asked.sample is not None:
        names = sorted(known)
        random.Random(asked.seed).shuffle(names)  # a larger sample begins with the smaller one
        names = names[: asked.sample]
    rows = _read(asked.csv)
    if not asked.summary:
        _run(asked, names, rows)
    shown = [row for row in rows.values() if asked.sample is None or row.type in names]
    print(summary(shown))
    return 1 if any(row.verdict == "differs" for row in shown) else 0


def _run(asked: Any, names: list[str], rows: dict[tuple[str, str], Row]) -> None:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    end = time.monotonic() + 60 * (asked.minutes or 1e6)
    for number, name in enumerate(names, 1):
        old = rows.get((name, asked.kind))
        if old is not None and not {old.verdict, "all"} & set(asked.again):
            continue
        if time.monotonic() > end:
            break
        began = time.monotonic()
        found = _in_process(context, name, asked.kind, asked.seconds, asked.keep)
        row = Row(name, asked.kind, **(found | {"seconds": f"{time.monotonic() - began:.0f}"}))
        rows[name, asked.kind] = row
        _write(asked.csv, rows)
        said = f"{row.ported} {row.mode} {row.training}/{row.bfloat16}/{row.init} {row.seconds} s"
        print(f"{number} of {len(names)} {name}: {said} {row.reason}"[:400], flush=True)


def _in_process(
    context: Any, name: str, kind: str, seconds: float, keep: Path | None
) -> dict[str, str]:
    work = Path(tempfile.mkdtemp(prefix="port-training-"))
    answer = work / "answer.json"
    process = context.Process(target=_child, args=(name, kind, work, answer))
    process.start()
    process.join(seconds)
    late = process.is_alive()
    if late:
        _end(process.pid)
        process.join()
    try:
        if answer.exists():
            found: dict[str, str] = json.loads(answer.read_text())
            return found
        what = f"over {seconds:g} s" if late else f"its process ended ({process.exitcode})"
        return {"ported": "time" if late else "crash", "reason": what}
    finally:
        if keep is not None:
            kept = keep / kind / name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(work, kept)
        shutil.rmtree(work, ignore_errors=True)


def _end(pid: int) -> None:
    """End a process with those that it started: it leads a group of its own."""
    import signal

    os.killpg(pid, signal.SIGKILL)


def _child(name: str, kind: str, work: Path, answer: Path) -> None:
    os.setpgid(0, 0)
    with (work / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        found = _measured(name, kind, work)
    except Exception as error:
        traceback.print_exc()
        found = {"ported": "crash", "reason": _line(f"{type(error).__name__}: {error}")}
    fresh = answer.with_suffix(".new")
    fresh.write_text(json.dumps(found))
    fresh.replace(answer)


def _measured(name: str, kind: str, work: Path) -> dict[str, str]:
    from converters.errors import ConversionError
    from migrate.parity.ground.errors import ParityError
    from migrate.port.errors import PortError
    from migrate.port.pipeline import PortOptions, port_model

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        model = type(training.built(name, kind == "head")).__name__
    except ValueError as error:
        return {"ported": "none", "reason": _line(str(error))}
    factory = work / "factory.py"
    factory.write_text(_FACTORY.format(name=name, head=kind == "head"))
    specs = (f"{factory}:inputs",)
    options = PortOptions(work, "model", specs, count=training.BATCHES, comparisons=_COMPARED)
    try:
        began = time.monotonic()
        done = port_model(
            f"{factory}:build",
            options,
            "",
            lambda what, *_: print(f"{time.monotonic() - began:.0f} s: {what}", flush=True),
        )
    except (PortError, ParityError, ConversionError) as error:
        return {"model": model, "ported": "refused", "reason": _line(str(error))}
    return {"model": model} | _judged(done)


def _judged(done: Any) -> dict[str, str]:
    cases = {case.name: case for case in done.cases}
    port, start = done.port, done.initialization
    mode = "refused" if port.refused else "both" if port.trains else "same"
    trained = cases.get("training mode" if port.trains else "gradients")
    reasons = [f"evaluation only: {port.refused}"] if port.refused else []
    reasons += [
        f"{case.name}: {case.error or case.sentence or case.verdict}"
        for case in done.cases
        if not case.matches
    ]
    reasons += [
        f"{one.setting}: {one.verdict}: {'; '.join(one.details)}"
        for one in done.numerics
        if not one.matches
    ][:1]
    equal = start is not None and not (start.error or start.differs or start.otherwise)
    if start is not None and not equal:
        lists = (*start.differs.items(), *start.otherwise.items())
        said = start.error or "; ".join(f"{path}: {why}" for path, why in lists[:2])
        reasons.append(f"init ({len(lists)}): {said}")
    worst = None if trained is None else trained.worst_gradient
    narrow = all(one.matches for one in done.numerics)
    times = [one.port / one.original for one in done.numerics if one.original]
    return {
        "ported": YES,
        "mode": mode,
        "evaluation": _said(cases["gradients"].matches) if "gradients" in cases else NONE,
        "training": NONE if trained is None or port.refused else _said(trained.matches),
        "gradient": "" if worst is None else f"{worst[1]:.1e}",
        "bfloat16": _said(narrow) if done.numerics else NONE,
        "times": f"{max(times):.2f}" if times else NONE,
        "init": NONE if start is None else _said(equal),
        "reason": _line(" | ".join(reasons)),
    }


def _said(holds: bool) -> str:
    return YES if holds else NO


def _line(text: str) -> str:
    text = re.sub(r"/\S*/(?=[\w.-]+)", "", " ".join(text.split()))
    return text[:600]


def summary(rows: list[Row]) -> str:
    """The shares, of each kind."""
    lines = []
    for kind in ("base", "head"):
        some = [row for row in rows if row.kind == kind and row.ported != "none"]
        if not some:
            continue
        ported = [row for row in some if row.ported == YES]
        lines += [f"| {kind} | types |", "|---|---|"]
        lines.append(f"| tried | {len(some)} |")
        lines.append(f"| ported | {_share(len(ported), len(some))} |")
        named = [row for row in ported if row.mode == "refused"]
        for what in ("evaluation", "training", "bfloat16", "init"):
            equal = sum(getattr(row, what) == YES for row in ported)
            lines.append(f"| {what}: equal, of those ported | {_share(equal, len(ported))} |")
        lines.append(f"| training refused by name | {_share(len(named), len(ported))} |")
        lines.append(
            f"| all of it | {_share(sum(row.verdict == YES for row in some), len(some))} |"
        )
        lines.append("")
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f"{count} of {total}" + (f" ({count / total:.0%})" if total else "")


def _read(path: Path) -> dict[tuple[str, str], Row]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["type"], row["kind"]): Row(**row) for row in csv.DictReader(file)}


def _write(path: Path, rows: dict[tuple[str, str], Row]) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows.values())
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
