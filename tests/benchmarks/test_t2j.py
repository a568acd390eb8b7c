"""The benchmark of issue 40 is as it was frozen; its judge passes a right program and refuses wrong ones."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.t2j import freeze, tasks
from benchmarks.t2j.judge import judge, public_signatures

ROOT = Path(__file__).parents[2] / "benchmarks" / "t2j"
SCRIPT = ROOT / "scripts" / "gpt2_sft.py"
REFERENCE = ROOT / "reference" / "gpt2_sft"


def test_the_scripts_are_those_that_were_frozen() -> None:
    assert freeze.changed() == []


def test_fifteen_families_of_three_and_five_held_back() -> None:
    frozen = freeze.read()
    assert len(frozen["held_back"]) == 5
    families = {name.rpartition("_")[0] for name in tasks.read_tasks()}
    assert set(frozen["held_back"]) < families
    wanted = {f"{family}_{kind}" for family in families for kind in ("sft", "dpo", "ppo")}
    assert wanted == set(tasks.read_tasks()) == {path.stem for path in freeze.scripts()}
    assert len(wanted) == 45


@pytest.mark.parametrize("script", freeze.scripts(), ids=lambda path: path.stem)
def test_public_names_are_in_the_source(script: Path) -> None:
    text, known = script.read_text(), public_signatures(script)
    task = tasks.read_task(script)
    for name in tasks.public_names(task):
        whole = name in known or f"class {name}" in text or (name in task["model"] and name in text)
        assert whole, name
    assert task["modules"]
    assert task["batch"]
    assert ("sampled" in task) == ("experience" in task) == ("scores" in task)
    assert ("scores" in task) == script.stem.endswith("_ppo")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("t2j") / "recording"
    command = [sys.executable, str(ROOT / "recorder.py"), str(SCRIPT), "--output", str(output)]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    result: dict[str, Any] = pickle.loads(output.read_bytes())
    return result


def verdicts(folder: Path, recording: dict[str, Any]) -> dict[str, bool | None]:
    return {v.stage: v.passed for v in judge(folder, SCRIPT, recording)}


@pytest.mark.long
def test_a_right_program_passes(recording: dict[str, Any]) -> None:
    result = judge(REFERENCE, SCRIPT, recording)
    assert [v.passed for v in result] == [True, True, True], result


# What is planted: the file, the right text, the wrong one, the stage that refuses it.
MISTAKES = {
    "a parameter renamed": (
        "loss.py",
        "(model, x, y, mask,",
        "(model, x, labels, mask,",
        "interface",
    ),
    "a public name missing": (
        "interface.py",
        "configure_optimizer, lr_factor",
        "configure_optimizer",
        "interface",
    ),
    "weights loaded transposed": (
        "interface.py",
        "jnp.asarray(x) for",
        "jnp.asarray(x.T if n.endswith('attn.c_proj.weight') else x) for",
        "interface",
    ),
    "stop_gradient lost": (
        "loss.py",
        "jax.lax.stop_gradient(jnp.exp(-nll))",
        "jnp.exp(-nll)",
        "numeric",
    ),
    "labels not shifted": (
        "loss.py",
        "logits[:, :-1], y[:, 1:]",
        "logits[:, :-1], y[:, :-1]",
        "numeric",
    ),
    "padding counted": (
        "loss.py",
        "weighted.sum() / learned.sum()",
        "weighted.mean()",
        "numeric",
    ),
    "another gelu": ("model.py", "approximate=True", "approximate=False", "numeric"),
    "decay on biases": ("optimizer.py", "p.ndim >= 2", "True", "behavioural"),
    "schedule off by one": (
        "train.py",
        "lr_factor(state.iter_num, TOTAL)",
        "lr_factor(state.iter_num + 1, TOTAL)",
        "behavioural",
    ),
    "another order of data": (
        "data.py",
        "manual_seed(seed)",
        "manual_seed(seed + 1)",
        "behavioural",
    ),
    "an epoch less": ("data.py", "range(max_epochs)", "range(max_epochs - 1)", "behavioural"),
    "clipping left out": (
        "optimizer.py",
        "        optax.clip_by_global_norm(grad_clip),\n",
        "",
        "behavioural",
    ),
    "one mean over all tokens": (
        "train.py",
        "        values.append(value)\n",
        """        values.append(value)
        counts = [(m["y"][:, 1:] != -100).sum() for m in micro]
        share = (batch["y"][:, 1:] != -100).sum() / sum(counts) * len(micro)
        more = jax.tree.map(lambda g: g * share, more)
""",
        "behavioural",
    ),
}


# A mistake of each stage is tried by default.
SHORT = {"a parameter renamed", "schedule off by one", "labels not shifted", "stop_gradient lost"}


@pytest.mark.parametrize(
    "mistake", [pytest.param(m, marks=() if m in SHORT else pytest.mark.long) for m in MISTAKES]
)
@pytest.mark.long_cases("stop_gradient lost", "labels not shifted")
def test_a_mistake_is_refused_by_the_right_stage(
    mistake: str, recording: dict[str, Any], tmp_path: Path
) -> None:
    file, right, wrong, stage = MISTAKES[mistake]
    folder = tmp_path / "program"
    shutil.copytree(REFERENCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    stages = ["interface", "numeric", "behavioural"]
    position = stages.index(stage)
    expected = [True] * position + [False] + [None] * (2 - position)
    assert list(verdicts(folder, recording).values()) == expected
