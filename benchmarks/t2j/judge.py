"""Judges a JAX program against the PyTorch script that it comes from, in three stages.

    python benchmarks/t2j/judge.py FOLDER SCRIPT [--json FILE]

The script runs under the judge's own recorder; the program is driven through FOLDER/interface.py alone
(README.md defines it). Nothing that a converter reports about its own result is read. Stages, in order:
interface, numeric, behavioural. A stage is reached if the one before it passed. Exit code 0: all passed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.t2j import bands, tasks
from benchmarks.t2j.bands import MismatchError

FILES = ("model.py", "loss.py", "optimizer.py", "data.py", "train.py", "interface.py")
CONTRACT = {
    "load": ["weights"],
    "weights": ["state"],
    "outputs": ["state", "batch", "site"],
    "loss_and_gradients": ["state", "batch", "site"],
    "step": ["state", "micro", "site", "rollout"],
}
PREFERENCE = {"batches": []}
ROLLOUT = {"experience": ["state", "sampled"], "rollout": ["state", "seed"]}
STAGES = ("interface", "numeric", "behavioural")
SEEDS = 4


@dataclass(frozen=True)
class Verdict:
    """Result of one stage.

    Attributes:
        stage: its name.
        passed: whether it passed; None if it was not reached.
        reason: the first thing that differs.
    """

    stage: str
    passed: bool | None
    reason: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the JAX program")
    parser.add_argument("script", type=Path, help="the PyTorch script")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    asked = parser.parse_args()
    task = tasks.read_task(asked.script)
    verdicts = judge(asked.folder, asked.script, *record(asked.script, task))
    for verdict in verdicts:
        word = {True: "passed", False: "failed", None: "not reached"}[verdict.passed]
        print(f"{verdict.stage}: {word}" + (f": {verdict.reason}" if verdict.reason else ""))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1))
    return 0 if all(v.passed for v in verdicts) else 1


def record(script: Path, task: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Record the script, and once more without autocast if it has some."""
    runs = [[]] + ([["--full-precision"]] if task.get("autocast") else [])
    recordings = []
    for extra in runs:
        with tempfile.TemporaryDirectory(prefix="t2j-") as work:
            output = Path(work) / "record.pickle"
            tool = Path(__file__).with_name("recorder.py")
            command = [sys.executable, str(tool), str(script), "--output", str(output), *extra]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{script}: the script did not run\n{done.stderr[-2000:]}")
            recordings.append(pickle.loads(output.read_bytes()))
    return recordings[0], recordings[1] if len(recordings) > 1 else None


def judge(
    folder: Path, script: Path, recording: dict[str, Any], precise: dict[str, Any] | None = None
) -> list[Verdict]:
    """Return the verdicts of the three stages.

    Args:
        folder: the program.
        script: its source.
        recording: what recorder.py recorded of the script.
        precise: the recording without autocast, of a script that has it.
    """
    task = tasks.read_task(script)
    verdicts: list[Verdict] = []
    with loaded(folder) as get_program:
        checks: list[Callable[[Any], None]] = [
            lambda p: check_interface(p, folder, script, task, recording),
            lambda p: check_numeric(p, task, recording, precise),
            lambda p: check_behaviour(p, task, recording, precise),
        ]
        for stage, check in zip(STAGES, checks, strict=True):
            if verdicts and not verdicts[-1].passed:
                verdicts.append(Verdict(stage, None))
                continue
            try:
                check(get_program())
            except MismatchError as reason:
                verdicts.append(Verdict(stage, False, str(reason)))
            except Exception as error:  # whatever the program raises is its failure
                said = " ".join(f"{type(error).__name__}: {error}".split())
                verdicts.append(Verdict(stage, False, said[:600]))
            else:
                verdicts.append(Verdict(stage, True))
    return verdicts


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[Callable[[], Any]]:
    """Give a function that imports the program's interface; its modules are forgotten afterwards."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    here = str(folder.resolve())
    own = {path.stem for path in folder.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield lambda: importlib.import_module("interface")
    finally:
        sys.path.remove(here)
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(hidden)


# ------------------------------------------------------------------------------ interface


def check_interface(
    program: Any, folder: Path, script: Path, task: dict[str, Any], recording: dict[str, Any]
) -> None:
    """Check files, the source's public names with their parameters, the contract, and the weights."""
    for name in FILES:
        if not (folder / name).is_file():
            raise MismatchError(f"{name}: no such file in the program")
        if name not in ("data.py", "interface.py") and _imports_torch(folder / name):
            raise MismatchError(f"{name}: imports torch")
    if Path(program.__file__).resolve().parent != folder.resolve():
        raise MismatchError("interface.py: another module was imported in its place")
    rollouts = "scores" in task
    for name, wanted in (CONTRACT | (ROLLOUT if rollouts else PREFERENCE)).items():
        if not callable(getattr(program, name, None)):
            raise MismatchError(f"interface.{name}: no such function")
        parameters = list(inspect.signature(getattr(program, name)).parameters)
        if parameters != wanted:
            raise MismatchError(f"interface.{name}({', '.join(parameters)}): expected {wanted}")
    source = public_signatures(script)
    for name in tasks.public_names(task):
        value = program
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is None or not callable(value):
            raise MismatchError(f"interface.{name}: the source has this public name")
        if name in source:
            compare_signature(name, source[name], value)
    first = recording["rounds"][0]["before"]
    state = program.load(first)
    bands.compare_weights("loaded weights", program.weights(state), first, recording["trained"])


def _imports_torch(path: Path) -> bool:
    """Whether a file imports torch or transformers anywhere."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return bool({name.partition(".")[0] for name in names} & {"torch", "transformers"})


def public_signatures(script: Path) -> dict[str, list[tuple[str, bool]]]:
    """Parameters of the script's functions, methods and constructors, each with whether it has a default."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _parameters(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if not isinstance(method, ast.FunctionDef):
                    continue
                static = any(
                    isinstance(d, ast.Name) and d.id == "staticmethod"
                    for d in method.decorator_list
                )
                parameters = _parameters(method)[0 if static else 1 :]
                name = node.name if method.name == "__init__" else f"{node.name}.{method.name}"
                found[name] = parameters
    return found


def _parameters(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    args = [*node.args.posonlyargs, *node.args.args]
    required = len(args) - len(node.args.defaults)
    listed = [(a.arg, i >= required) for i, a in enumerate(args)]
    if node.args.vararg:
        listed.append(("*" + node.args.vararg.arg, True))
    keyword = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    listed += [(a.arg, default is not None) for a, default in keyword]
    if node.args.kwarg:
        listed.append(("**" + node.args.kwarg.arg, True))
    return listed


def compare_signature(name: str, wanted: list[tuple[str, bool]], value: Any) -> None:
    """Check that the program's callable takes the source's parameters; more are allowed with defaults."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    listed = [
        (stars.get(p.kind, "") + key, p.default is not p.empty or p.kind in stars)
        for key, p in inspect.signature(value).parameters.items()
        if key != "self"
    ]
    if listed[: len(wanted)] != wanted:
        raise MismatchError(
            f"interface.{name}: parameters {_said(listed)}, the source has {_said(wanted)}"
        )
    for key, has_default in listed[len(wanted) :]:
        if not has_default:
            raise MismatchError(f"interface.{name}: the source has no parameter {key}")


def _said(parameters: list[tuple[str, bool]]) -> str:
    return "(" + ", ".join(key + ("=…" if default else "") for key, default in parameters) + ")"


# ------------------------------------------------------------------------------ numeric


def check_numeric(
    program: Any, task: dict[str, Any], recording: dict[str, Any], precise: dict[str, Any] | None
) -> None:
    """Check outputs, losses and the gradients of every parameter on recorded batches."""
    rounds = recording["rounds"]
    chosen = sorted(
        {0, 1, len(rounds) // 2, len(rounds) - 2, len(rounds) - 1} & set(range(len(rounds)))
    )
    for number in chosen:
        state = program.load(rounds[number]["before"])
        for position, micro in enumerate(rounds[number]["micro"][:2]):
            where = f"step {number}, backward {position}"
            noise = None if precise is None else precise["rounds"][0]["micro"][0]
            band = bands.numeric(noise, rounds[0]["micro"][0])
            outputs = [np.asarray(x) for x in program.outputs(state, micro["batch"], micro["site"])]
            bands.compare_outputs(where, outputs, micro["outputs"], band)
            loss, gradients = program.loss_and_gradients(state, micro["batch"], micro["site"])
            bands.compare_loss(where, float(loss), micro["loss"], band.loss, micro["gradients"])
            bands.compare_gradients(where, gradients, micro["gradients"], band)
    rollouts = recording["rollouts"]
    for rollout in rollouts[:1] if task.get("stateful_rewards") else rollouts[:1] + rollouts[-1:]:
        state = program.load(rollout["weights"])
        result = program.experience(state, rollout["sampled"])
        where = f"rollout before step {rollout['round']}"
        bands.compare_experience(where, result, rollout["experience"])


# ------------------------------------------------------------------------------ behavioural


def check_behaviour(
    program: Any, task: dict[str, Any], recording: dict[str, Any], precise: dict[str, Any] | None
) -> None:
    """Check a whole training: order of data, losses, learning rates, final weights, sampling."""
    rounds = recording["rounds"]
    state = program.load(rounds[0]["before"])
    own = None if "scores" in task else iter(program.batches())
    begins = {rollout["round"]: rollout for rollout in recording["rollouts"]}
    band = bands.behavioural(recording, precise)
    for number, wanted in enumerate(rounds):
        micro = [m["batch"] for m in wanted["micro"]]
        if own is not None:
            mine = next(own, None)
            if mine is None:
                raise MismatchError(
                    f"step {number}: the program's data end here, the script's do not"
                )
            bands.compare_batches(f"step {number}", mine, micro)
            micro = mine
        rollout = begins.get(number)
        given = rollout and {k: rollout[k] for k in ("sampled", "experience", "scores")}
        state, report = program.step(state, micro, wanted["site"], given)
        bands.compare_rate(f"step {number}", report["learning_rate"], wanted["learning_rate"])
        losses = [float(x) for x in report["losses"]]
        if len(losses) != len(wanted["micro"]):
            raise MismatchError(
                f"step {number}: {len(losses)} losses, the script has {len(wanted['micro'])}"
            )
        for loss, m in zip(losses, wanted["micro"], strict=True):
            bands.compare_loss(f"step {number}", loss, m["loss"], band.loss, None, band.scale)
    if own is not None and next(own, None) is not None:
        raise MismatchError("the program has more steps than the script")
    bands.compare_final(program.weights(state), recording, band)
    compare_sampling(program, task, recording)


def compare_sampling(program: Any, task: dict[str, Any], recording: dict[str, Any]) -> None:
    """Check the scores of the program's own rollouts against the script's, within four standard errors."""
    rollouts = recording["rollouts"]
    for rollout in rollouts[:1] if task.get("stateful_rewards") else rollouts[:1] + rollouts[-1:]:
        state = program.load(rollout["weights"])
        mine = np.concatenate([np.asarray(program.rollout(state, seed)) for seed in range(SEEDS)])
        bands.compare_scores(f"rollout before step {rollout['round']}", mine, rollout["scores"])


if __name__ == "__main__":
    sys.exit(main())
