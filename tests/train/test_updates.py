"""Several optimizers in one script: which backwards are whose, the cut losses and batches, the program."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.train.errors import TrainError
from migrate.train.find import loss_of_update, update_names, updates_of
from migrate.train.frames import Frame
from migrate.train.results import TrainComparison, stages
from migrate.train.slice.data import batch_of, batches_slice
from migrate.train.slice.forwards import find_forward
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import SeenCall
from migrate.train.watch.step import class_name
from migrate.train.write.functions import FunctionTexts, Role
from migrate.train.write.readme import table_of
from migrate.train.write.split import split
from migrate.train.write.updates import UpdateFacts, apart, together
from migrate.train.write.updates_interface import merged_roles
from tests.train.scripts import ACTOR_AND_CRITIC, GAN, GAN_WITH_PICTURES, TWO_LOSSES
from tests.train.toy import FACTS


def seen(script: ScriptText, *calls: tuple[str, str, str], optimizers: Sequence[int]) -> list[Any]:
    """Events at the lines with these texts, in these functions; the steps are those of these optimizers."""
    numbers = iter(optimizers)
    events = []
    for kind, text, function in calls:
        first = 1
        if function != "<module>":
            first = 1 + next(n for n, line in enumerate(script.lines) if f"def {function}(" in line)
        line = next(n for n, t in enumerate(script.lines, 1) if n >= first and text in t)
        outer = [asdict(Frame(line, function, first))]
        if function != "<module>":
            fit = 1 + next(n for n, t in enumerate(script.lines) if "def fit(" in t)
            call = next(n for n, t in enumerate(script.lines, 1) if n > fit and f"{function}(" in t)
            outer += [
                asdict(Frame(call, "fit", fit)),
                asdict(Frame(len(script.lines), "<module>", 1)),
            ]
        which = next(numbers) if kind == "step" else 0
        events.append({"kind": kind, "frames": outer, "which": which})
    return events


def gan(source: str = GAN) -> tuple[ScriptText, Any]:
    """The GAN, and its two updates."""
    script = ScriptText("gan.py", source)
    events = seen(
        script,
        ("backward", "errD_real.backward", "<module>"),
        ("backward", "errD_fake.backward", "<module>"),
        ("step", "optimizerD.step", "<module>"),
        ("backward", "errG.backward", "<module>"),
        ("step", "optimizerG.step", "<module>"),
        optimizers=[0, 1],
    )
    calls = updates_of(script, events, ())
    return script, [(each, loss_of_update(script, each)) for each in calls]


def test_losses_of_one_step_are_summed_and_random_numbers_belong_to_the_batch() -> None:
    script, updates = gan()
    (_, of_d), (calls, of_g) = updates
    assert of_d.result == "errD_real + errD_fake"
    assert of_g.text.splitlines()[-2:] == [
        "label.fill_(1.0)",
        "errG = criterion(netD(fake), label)",
    ]
    assert "noise" in of_d.free
    assert "torch.randn" not in of_d.text + of_g.text
    assert len(calls.others) == 3
    assert update_names(script, updates) == ["optimizerD", "optimizerG"]


TRAINED = {("<module>", 1): ["netG", "netD", "optimizerD", "optimizerG"]}


def batches_of_gan(script: ScriptText, updates: Any) -> list[Any]:
    """The batches of its updates."""
    return [
        batch_of(script, calls, loss, ["rows", "i", "noise"], name)
        for (calls, loss), name in zip(updates, ("D", "G"), strict=True)
    ]


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("fake = netG(fixed)", "{'input': fixed}"),
        ("picture = netG(2 * fixed[:3]).detach()", "{'input': 2 * fixed[:3]}"),
        ("fake = netG(netG(fixed)[:, :3])", ""),
        ("fake = [netG(x) for x in fixed]", ""),
        ("fake = netG(input=fixed)", ""),
    ],
)
def test_a_call_between_the_updates_is_given_where_the_script_makes_it(
    statement: str, given: str
) -> None:
    script, updates = gan(GAN_WITH_PICTURES.replace("fake = netG(fixed)", statement))
    line = 1 + next(n for n, text in enumerate(script.lines) if statement in text)
    frame = Frame(line, "<module>", 1)
    of = find_forward(script, frame, ["input"], {"netG"}, updates[0][1], "pictures")
    assert (of is not None) == bool(given)
    if of is not None:
        batches = batches_of_gan(script, updates)
        text = batches_slice(script, batches, trained=TRAINED, forwards=[of]).text
        *_, condition, call, end = (line.strip() for line in text.splitlines() if line.strip())
        assert condition == "if i % 2 == 0:"
        assert call == f"yield 'pictures', {given}"
        assert end == "yield 'pictures', None"


def test_batches_of_a_gan_are_given_by_name_with_the_numbers_that_the_script_draws() -> None:
    script, updates = gan()
    batches = batches_of_gan(script, updates)
    text = batches_slice(script, batches, trained=TRAINED).text
    loop = [line.strip() for line in text.partition("for i in range(3):")[2].splitlines()]
    given = "{'rows': rows, 'i': i, 'noise': noise}"
    assert [line for line in loop if line and not line.startswith("#")] == [
        "real = rows[8 * i : 8 * i + 8]",
        "noise = torch.randn(real.size(0), 3)",
        f"yield 'D', {given}",
        f"yield 'G', {given}",
        "yield 'D', None",
        "yield 'G', None",
    ]


def test_each_update_may_have_a_loop_of_its_own() -> None:
    script = ScriptText("fit.py", ACTOR_AND_CRITIC)
    events = seen(
        script,
        ("backward", "loss.backward", "update_critic"),
        ("clip_grad_norm", "clip_grad_norm_", "update_critic"),
        ("step", "optimizer.step", "update_critic"),
        ("backward", "loss.backward", "update_actor"),
        ("step", "optimizer.step", "update_actor"),
        optimizers=[1, 0],
    )
    calls = updates_of(script, events, ())
    updates = tuple((each, loss_of_update(script, each)) for each in calls)
    assert update_names(script, updates) == ["update_critic", "update_actor"]
    batches = [
        batch_of(script, each, loss, names, name)
        for (each, loss), names, name in zip(
            updates, (["data"], ["data"]), ("critic", "actor"), strict=True
        )
    ]
    text = batches_slice(script, batches).text
    assert text.count("yield from update_") == 2
    assert text.index("yield 'critic', None") < text.index("yield 'actor', None")


@pytest.mark.parametrize(
    ("calls", "optimizers", "what"),
    [
        ("real fake D G", [0, 1], "a second optimizer is stepped after one backward"),
        ("real fake D real D", [0, 0], "not all made of the same backwards"),
        ("real D real G", [0, 1], "this backward is that of several optimizers"),
    ],
)
def test_backwards_that_belong_to_no_single_step_are_refused(
    calls: str, optimizers: list[int], what: str
) -> None:
    script = ScriptText("gan.py", GAN)
    lines = {
        "real": ("backward", "errD_real.backward", "<module>"),
        "fake": ("backward", "errD_fake.backward", "<module>"),
        "D": ("step", "optimizerD.step", "<module>"),
        "G": ("step", "optimizerG.step", "<module>"),
    }
    events = seen(script, *(lines[c] for c in calls.split()), optimizers=optimizers)
    with pytest.raises(TrainError, match=what):
        updates_of(script, events, ())


def test_losses_of_one_name_are_refused() -> None:
    script = ScriptText("two.py", TWO_LOSSES)
    first, second = (n for n, line in enumerate(script.lines, 1) if "loss.backward" in line)
    events = [
        {"kind": "backward", "frames": [asdict(Frame(n, "<module>", 1))], "which": 0}
        for n in (first, second)
    ]
    step = asdict(Frame(second + 1, "<module>", 1))
    [calls] = updates_of(script, [*events, {"kind": "step", "frames": [step], "which": 0}], ())
    with pytest.raises(TrainError, match="starts from the same name"):
        loss_of_update(script, calls)


def test_sources_that_define_the_same_stand_in_a_module_once() -> None:
    one = "import jax\nfrom a import b, c\n\nSIZE = 3\n\n\ndef f(x):\n    return x\n"
    two = "from a import c\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return x\n"
    text = together([one, two])
    assert text.count("def f(") == text.count("from a import c") == 1
    assert "SIZE = 3" in text
    assert "def g(" in text


def test_functions_of_a_script_keep_their_names_where_another_update_computes_them_otherwise() -> (
    None
):
    modeling = """
class {name}:
    def setup(self):
        pass

    def __call__(self, x):
        return mean(x)

    def mean(self, x):
        return mean(x)


def mean(x):
    return {value}
"""
    updates = [
        UpdateFacts(
            name,
            FACTS,
            None,
            split(
                modeling.format(name=class_name(name), value=value),
                "t.py",
                {"mean"},
                class_name(name),
            ),
            "",
            (),
            (),
        )
        for name, value in (("low", "x.mean()"), ("high", "2 * x.mean()"))
    ]
    [low, high], _ = apart(updates)
    assert low.sources.functions.count("def mean(self") == 1
    text = high.sources.functions
    assert "class HighStepFunctions(HighStep):" in text
    assert text.count("def mean(self, x):") == text.count("return mean_of_high(x)") == 1
    assert "def mean_of_high(x):" in high.sources.loss


def test_functions_py_imports_what_its_own_functions_read() -> None:
    modeling = """
class Step(Module):
    def __call__(self, x):
        return mean(x)

    def lowered(self, x):
        return lower(x)


def mean(x):
    return x.mean()


def lower(x):
    return mean(x) - 1
"""
    sources = split(modeling, "t.py", {"lowered"})
    assert "def lower(" in sources.functions
    assert "def mean(" in sources.loss
    assert "from loss import mean, Step" in sources.functions


def test_a_function_that_makes_several_updates_has_one_part_in_them() -> None:
    call = SeenCall(
        "Trainer.step", 3, {"self": ("other", None), "batch": ("data", {})}, held=("a",)
    )
    also = replace(call, held=("b",))
    roles = [{"Trainer.step": Role("update", call)}, {"Trainer.step": Role("update", also)}]
    merged = merged_roles(roles)
    assert merged["Trainer.step"].sites == (0, 1)
    assert merged["Trainer.step"].call.held == ("a", "b")
    script = ScriptText(
        "t.py", "class Trainer:\n    lr = 1\n    def step(self, batch):\n        pass\n"
    )
    texts = FunctionTexts(script, (), merged, ["batch"], {}, {}, updates=["low", "high"])
    node = script.tree.body[0]
    assert isinstance(node, ast.ClassDef)
    done = []

    def step(state: int, micro: Any, site: int) -> tuple[int, str]:
        done.append((state, micro, site))
        return state + 1, f"report {site}"

    namespace: dict[str, Any] = {"step": step, "SITES": ("low", "high")}
    exec(texts.class_(node), namespace)
    state, reports = namespace["Trainer"](5).step("rows")
    assert (state, reports) == (7, {"low": "report 0", "high": "report 1"})
    assert done == [(5, [{"batch": "rows"}], 0), (6, [{"batch": "rows"}], 1)]
    assert not merged_roles([roles[0], {"Trainer.step": Role("gradient", call)}])


def train(folder: Path, source: str, *options: str) -> Result:
    """Run the command on a script."""
    (folder / "train.py").write_text(source)
    command = ["train", str(folder / "train.py"), "-o", str(folder / "jax_program"), *options]
    return CliRunner().invoke(commands, command)


# Weights go through unchanged; a step by torch's names is the recorded one, and has the loss's own gradients.
INTERFACE = """
import data
import interface
import numpy as np
import train

start = interface.weights(train.load())
assert set(start) == {"netD", "netG"}
state = interface.load(start)
again = interface.weights(state)
for module, arrays in start.items():
    for name, x in arrays.items():
        np.testing.assert_array_equal(x, again[module][name])
recorded = np.load("recorded.npz")
batches = interface.batches()
for site in (0, 1):
    micro = next(batches)
    outputs = interface.outputs(state, micro[0], site)
    assert [x.shape for x in outputs] == [[(8, 1), (8, 4), (8, 1)], [(8, 4), (8, 1)]][site]
    loss, gradients = interface.loss_and_gradients(state, micro[0], site)
    assert set(gradients) == {"netG" if site else "netD"}
    assert all(np.shape(x) == np.shape(start[m][n]) for m, of in gradients.items() for n, x in of.items())
    state, report = interface.step(state, micro, site)
    np.testing.assert_allclose(report["losses"], recorded[f"{site}/losses"], rtol=1e-5)
    np.testing.assert_allclose(float(loss), report["losses"][0], rtol=1e-6)
    np.testing.assert_allclose(report["learning_rate"], 0.01)
"""


@pytest.mark.long
def test_a_gan_trains_as_its_script_and_a_lost_part_of_a_loss_is_seen(tmp_path: Path) -> None:
    result = train(tmp_path, GAN_WITH_PICTURES, "--json", "--updates", "3")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written["verdict"] == "match"
    assert [left.partition(": ")[2] for left in written["left"]] == ["print(fake.detach().mean())"]
    program = tmp_path / "jax_program"
    own = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(program / "test_same.py"),
    ]
    done = subprocess.run(own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    loop = subprocess.run(
        [sys.executable, str(program / "train.py")], capture_output=True, text=True
    )
    assert loop.stdout.count("optimizerG") == 3, loop.stderr
    own = [sys.executable, "-c", INTERFACE]
    done = subprocess.run(own, capture_output=True, text=True, cwd=program)
    assert done.returncode == 0, done.stderr
    losses = program / "loss.py"
    assert "stop_gradient" in losses.read_text()
    losses.write_text(losses.read_text().replace(" in frozen else value", " in () else value"))
    optimizers = program / "optimizer.py"
    optimizers.write_text(optimizers.read_text().replace("0.01", "0.02", 1))
    command = ["prove", str(tmp_path / "train.py"), "--against", str(program)]
    proved = CliRunner().invoke(commands, [*command, "--steps", "3"])
    assert proved.exit_code == 1, proved.output
    causes = [line for line in proved.output.splitlines() if "cause (" in line]
    assert any("cause (gradients): optimizerG: netD/" in line for line in causes)
    assert any("cause (learning rates): optimizerD: every rate is 2 times" in c for c in causes)
    assert not any("their group" in line for line in causes)


def test_the_table_of_a_program_has_the_cause_of_each_update() -> None:
    comparisons = [
        TrainComparison("gradients", True, 1e-7, 1e-5, "D: 9 parameters"),
        TrainComparison("gradients", False, 1.0, 1e-5, "G: 9 parameters", "G: lost stop_gradient"),
        TrainComparison("losses", False, 1.0, 1e-5, "G: 3 updates"),
        TrainComparison("losses", False, 1.0, 1e-5, "D: 3 updates"),
    ]
    last = [line.split(" | ")[-1] for line in table_of(comparisons)[2:]]
    assert last[:2] == ["D: 9 parameters |", "G: 9 parameters; cause: G: lost stop_gradient |"]
    assert stages(comparisons)["behavioural"] == "differs in losses"


def test_a_method_that_fills_what_the_loop_reads_is_no_part_that_is_left_out() -> None:
    source = """
class Trainer:
    def collect(self, n):
        x = self.model(n)
        self.buffer.append(x)
        return x

    def train(self):
        for batch in self.buffer:
            loss = self.model(batch)
            loss.backward()
            self.optimizer.step()


def fit():
    trainer = Trainer()
    for n in range(3):
        reward = trainer.collect(n)
        trainer.train()


fit()
"""
    script = ScriptText("fit.py", source)
    backward, step = seen(
        script,
        ("backward", "loss.backward", "train"),
        ("step", "optimizer.step", "train"),
        optimizers=[0],
    )
    [calls] = updates_of(script, [backward, step], ())
    loss = loss_of_update(script, calls)
    trained = {("fit", backward["frames"][1]["first"]): ["trainer.model"]}
    with pytest.raises(TrainError, match=r"depends on trainer\.model, which is trained"):
        batches_slice(script, [batch_of(script, calls, loss, ["batch"])], trained=trained)
