"""What the source alone shows is refused before the script runs; what a condition decides is not."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.train.errors import TrainError
from migrate.train.refused import certain_calls, require_writable
from migrate.train.slice.text import ScriptText

SCRIPT = """
    import torch
    from torch import optim


    def build(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
        return optimizer, scheduler


    def main():
        model = torch.nn.Linear(2, 1)
        optimizer, scheduler = build(model)
        for x in torch.ones(4, 3, 2):
            loss = model(x).mean()
            loss.backward()
            optimizer.step()


    if __name__ == "__main__":
        main()
"""
PLATEAU = SCRIPT.replace("StepLR(optimizer, 2)", "ReduceLROnPlateau(optimizer)")


def refusal(source: str, folder: Path = Path("nowhere")) -> str:
    try:
        require_writable(ScriptText(str(folder / "train.py"), textwrap.dedent(source)))
    except TrainError as error:
        return str(error.what)
    return ""


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (PLATEAU, "train.py:8: ReduceLROnPlateau sets the learning rate by a metric"),
        (
            SCRIPT.replace("optim.SGD(", "optim.LBFGS("),
            "train.py:7: LBFGS has no counterpart in optax",
        ),
        (
            SCRIPT.replace(
                "            loss.backward()\n            optimizer.step()",
                "            loss.backward(); optimizer.step()",
            ),
            "train.py:17: several statements are on this line",
        ),
        (
            SCRIPT.replace("loss.backward()", "print(loss)"),
            "train.py: its training is without a backward",
        ),
    ],
    ids=["plateau", "optimizer", "line", "backward"],
)
def test_what_the_source_alone_shows_is_refused(source: str, what: str) -> None:
    assert what in refusal(source)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    scheduler = optim", "    if model.plateau:\n            scheduler = optim"),
        (
            "optimizer, scheduler = build(model)",
            "optimizer, scheduler = build(model) if model.bias is None else other(model)",
        ),
        (
            "        scheduler = optim",
            "        if model.bias is None:\n            return None, None\n        scheduler = optim",
        ),
        ("    def build(", "    @decorated\n    def build("),
        ("    from torch import optim\n", "    import own as optim\n"),
        (
            "    from torch import optim\n",
            "    from torch import optim\n    optim = wrapped(optim)\n",
        ),
        ('if __name__ == "__main__":', "if torch.cuda.is_available():"),
    ],
)
def test_what_a_run_decides_is_not_refused(before: str, after: str) -> None:
    assert before in PLATEAU
    assert refusal(PLATEAU.replace(before, after, 1)) == ""


def test_calls_are_those_that_are_made_whatever_the_arguments_are() -> None:
    source = """
a(b())
c() if d() else e()
f() and g()
[h() for _ in i()]
with j():
    k()
while l():
    m()
sys.exit(n())
o()
"""
    called = [ast.unparse(call.func) for call in certain_calls(ast.parse(source))]
    assert called == ["b", "a", "d", "f", "j", "k", "n", "sys.exit"]


def test_a_module_of_the_folder_may_train(tmp_path: Path) -> None:
    script = "from fit import fit\nfit()\n"
    assert "without a backward" in refusal(script, tmp_path)
    (tmp_path / "fit.py").write_text("from steps import step\n")
    assert "without a backward" in refusal(script, tmp_path)
    (tmp_path / "steps.py").write_text("def step(loss):\n    loss.backward()\n")
    assert refusal(script, tmp_path) == ""


@pytest.mark.parametrize(
    ("module", "runs"), [("own_timm.utils", True), ("own_timm", False), ("torch.utils", False)]
)
def test_a_module_of_a_library_may_call_backward(
    module: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site" / "own_timm"
    (library / "utils").mkdir(parents=True)
    (library / "__init__.py").write_text("from .utils import Scaler\n")
    (library / "utils" / "cuda.py").write_text("class Scaler: ...  # loss.backward()\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "script").mkdir()
    said = refusal(f"from {module} import Scaler\nScaler()(loss, optimizer)\n", tmp_path / "script")
    assert ("without a backward" not in said) == runs


def test_nothing_is_run_before_a_refusal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PLATEAU) + "\nopen('ran', 'w')\n")
    result = CliRunner().invoke(commands, ["train", str(script), "-o", str(tmp_path / "program")])
    assert result.exit_code == 2
    assert "train.py:8: ReduceLROnPlateau" in result.output
    assert "running" not in result.output
    assert [*tmp_path.iterdir()] == [script]
