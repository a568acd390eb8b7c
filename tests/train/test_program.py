"""`migrate train` as a command: programs that train as their scripts do, and refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from tests.train.scripts import (
    ADJUSTED,
    AUTOENCODER,
    AVERAGED,
    BUFFER,
    CLASSIFIER,
    COUNTING,
    DENOISER,
    EVALUATED,
    HANDED,
    IN_LOOP,
    LATE,
    LOGGED,
    MIXED,
    NANO,
    OFFSET,
    RECIPE,
    REFRESHED,
    ROLLOUTS,
    SCALED_GRADIENTS,
    TWO_OPTIMIZERS,
)

pytestmark = pytest.mark.long


def train(folder: Path, source: str, *options: str) -> Result:
    """Run the command on a script."""
    script = folder / "train.py"
    script.write_text(source)
    output = folder / "jax_program"
    return CliRunner().invoke(commands, ["train", str(script), "-o", str(output), *options])


@pytest.mark.parametrize(
    "source",
    [NANO, CLASSIFIER, AUTOENCODER, DENOISER, MIXED],
    ids=["nano", "classifier", "autoencoder", "denoiser", "mixed"],
)
def test_the_program_trains_as_the_script(tmp_path: Path, source: str) -> None:
    result = train(tmp_path, source, "--json", "--updates", "4")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["verdict"] == "match"
    assert {c["name"] for c in found["comparisons"]} - {
        "dropout",
        "random numbers",
        "evaluation",
    } == {
        "start",
        "gradients",
        "sum of gradients",
        "optimizer",
        "losses",
        "learning rates",
        "weights",
        "data",
        "stability",
    }
    program = tmp_path / "jax_program"
    own = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(program / "test_same.py"),
        ],
        capture_output=True,
        text=True,
    )
    assert own.returncode == 0, own.stdout
    loop = subprocess.run(
        [sys.executable, str(program / "train.py"), "--updates", "2"],
        capture_output=True,
        text=True,
    )
    words = (
        "epoch 1: " if source == CLASSIFIER else "update "
    )  # it prints the first update of three
    assert loop.stdout.count(words) == (1 if source == CLASSIFIER else 2), loop.stderr


def test_log_lines_are_printed_as_the_script_prints_them(tmp_path: Path) -> None:
    result = train(tmp_path, LOGGED, "--no-proof", "--updates", "4")
    assert result.exit_code == 0, result.output
    program = tmp_path / "jax_program"
    assert "print" not in (program / "README.md").read_text().partition("left by hand")[2]
    printed = [
        subprocess.run([sys.executable, str(file)], capture_output=True, text=True).stdout
        for file in (tmp_path / "train.py", program / "train.py")
    ]
    assert printed[0].count("epoch") == 9
    assert printed[1] == printed[0]
    # A run that goes on prints what follows; a sum that began before is not a number.
    words = ["--checkpoints", str(tmp_path / "run")]
    for more in (["--updates", "2"], []):
        command = [sys.executable, str(program / "train.py"), *words, *more]
        printed.append(subprocess.run(command, capture_output=True, text=True).stdout)
    lines = [text.splitlines() for text in printed]
    assert lines[2] == lines[0][:1]
    assert lines[3][:2] == [lines[0][1], lines[0][2].replace(lines[0][2][14:19], "nan", 1)]
    assert lines[3][2:] == lines[0][3:]


def test_rounding_beyond_a_limit_is_decided_in_float64(tmp_path: Path) -> None:
    result = train(tmp_path, OFFSET, "--json", "--updates", "2")
    assert result.exit_code == 0, result.output
    decided = [c for c in json.loads(result.stdout)["comparisons"] if "in float64" in c["what"]]
    assert "weights" in {c["name"] for c in decided}
    assert all(c["largest_difference"] < 1e-9 for c in decided)
    # A factor in the loss that is as small as the rounding was differs in float64, too.
    loss = tmp_path / "jax_program" / "loss.py"
    exact = "deterministic=deterministic), y)"
    assert exact in loss.read_text()
    loss.write_text(loss.read_text().replace(exact, f"{exact} * 1.0001"))
    script = str(tmp_path / "train.py")
    proof = CliRunner().invoke(
        commands,
        ["prove", script, "--against", str(loss.parent), "--steps", "2", "--json"],
    )
    assert proof.exit_code == 1
    found = {c["name"]: c for c in json.loads(proof.stdout)["comparisons"] if not c["same"]}
    assert "in float64 1.0e-04" in found["gradients"]["what"]


def test_random_numbers_of_a_loss_are_proven(tmp_path: Path) -> None:
    result = train(tmp_path, AUTOENCODER, "--updates", "2", "--no-proof")
    assert result.exit_code == 0, result.output
    program = tmp_path / "jax_program"
    arguments = ["prove", "--against", str(program), "--json", "--steps", "2"]
    again = CliRunner().invoke(commands, [*arguments, str(tmp_path / "train.py")])
    assert again.exit_code == 0, again.output
    source = (program / "train.py").read_text()
    one_key = re.sub(r"jax\.random\.fold_in\(KEY, state\.step[^)]*\)", "KEY", source)
    assert one_key != source
    (program / "train.py").write_text(one_key)
    again = CliRunner().invoke(commands, [*arguments, str(tmp_path / "train.py")])
    assert again.exit_code == 1, again.output
    found = {c["name"]: c for c in json.loads(again.stdout)["comparisons"]}
    assert "the same numbers again" in found["random numbers"]["cause"]


def test_a_moving_average_of_the_weights_is_in_the_program(tmp_path: Path) -> None:
    result = train(tmp_path, AVERAGED, "--json")
    assert result.exit_code == 0, result.output
    found = {c["name"]: c for c in json.loads(result.stdout)["comparisons"]}
    assert found["average"]["same"]
    assert "1 - 0.95)" in (tmp_path / "jax_program" / "train.py").read_text()
    assert not json.loads(result.stdout)["left"]


def test_rollouts_are_made_with_the_weights_of_the_program(tmp_path: Path) -> None:
    result = train(tmp_path, ROLLOUTS, "--json", "--updates", "6")
    assert result.exit_code == 0, result.output
    found = {c["name"]: c for c in json.loads(result.stdout)["comparisons"]}
    assert found["data"]["what"].startswith("6 updates, by rollouts with the program's own weights")
    program = tmp_path / "jax_program"
    assert "yield None\n                hand_over({'player'" in (
        program / "data.py"
    ).read_text().replace('"', "'")
    # Modules that keep the weights of the start roll out something else from the second rollout on.
    data = (program / "data.py").read_text()
    (program / "data.py").write_text(data.replace("module.load_state_dict(", "dict("))
    script = tmp_path / "train.py"
    arguments = ["prove", "--against", str(program), "--json", "--steps", "6", str(script)]
    again = CliRunner().invoke(commands, arguments)
    assert again.exit_code == 1, again.output
    found = {c["name"]: c for c in json.loads(again.stdout)["comparisons"]}
    assert not found["data"]["same"]
    assert found["data"]["what"].startswith("update 4")
    assert found["weights"]["same"]


def test_a_buffer_of_rollouts_is_learned_from_until_the_policy_has_moved(tmp_path: Path) -> None:
    result = train(tmp_path, BUFFER, "--json", "--updates", "9")
    assert result.exit_code == 0, result.output
    found = {c["name"]: c for c in json.loads(result.stdout)["comparisons"]}
    assert found["data"]["what"].startswith("9 updates, by rollouts with the program's own weights")
    data = (tmp_path / "jax_program" / "data.py").read_text().replace('"', "'")
    assert "'seen': buffer.seen[idx]" in data
    assert "if moved > 0.05:" in data


def test_a_reference_that_is_refreshed_is_refreshed_in_the_program(tmp_path: Path) -> None:
    result = train(tmp_path, REFRESHED, "--json", "--updates", "10")
    assert result.exit_code == 0, result.output
    assert "4 frozen parameters become copies of trained ones every 4 updates" in result.stdout
    program = tmp_path / "jax_program"
    source = (program / "train.py").read_text()
    (program / "train.py").write_text(source.replace("state = refreshed(state)", "pass"))
    arguments = ["prove", "--against", str(program), "--json", "--steps", "10"]
    again = CliRunner().invoke(commands, [*arguments, str(tmp_path / "train.py")])
    assert again.exit_code == 1, again.output
    found = {c["name"]: c for c in json.loads(again.stdout)["comparisons"]}
    assert found["gradients"]["same"]
    assert not found["losses"]["same"]


def test_rollouts_of_a_script_without_a_seed_are_refused(tmp_path: Path) -> None:
    result = train(tmp_path, ROLLOUTS.replace("torch.manual_seed(3)", ""))
    assert result.exit_code == 2
    assert "the loop runs what it trains, but torch is not seeded" in result.output
    assert not (tmp_path / "jax_program").exists()


def test_a_trainer_in_another_file_is_a_part_of_the_script(tmp_path: Path) -> None:
    head, loop = LATE.replace("CHANGE", "pass").split("for epoch", 1)
    body = "".join(f"    {line}\n" for line in f"for epoch{loop}".splitlines())
    trainer = (
        "import torch.nn.functional as F\n\ndef fit(model, data, optimizer, scheduler, beta):\n"
    )
    (tmp_path / "trainer.py").write_text(trainer + body)
    script = f"{head}\nfrom trainer import fit\nfit(model, data, optimizer, scheduler, beta)\n"
    result = train(tmp_path, script)
    assert result.exit_code == 0, result.output
    assert "trainer.py:" in (tmp_path / "jax_program" / "README.md").read_text()


def test_only_data_and_the_interface_import_torch(tmp_path: Path) -> None:
    assert train(tmp_path, NANO, "--no-proof", "--updates", "2").exit_code == 0
    program = tmp_path / "jax_program"
    importing = {p.name for p in program.glob("*.py") if "import torch" in p.read_text()}
    assert importing == {"data.py", "interface.py"}


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        (TWO_OPTIMIZERS, 12, "a second optimizer"),
        (SCALED_GRADIENTS, 12, "is changed between backward and here"),
        ("import torch\nprint(torch.ones(2))\n", 0, "without a backward"),
        (COUNTING, 28, "model.calls (train.py:16) in training"),
    ],
)
def test_a_refusal_names_its_line_and_writes_nothing(
    tmp_path: Path, source: str, line: int, what: str
) -> None:
    result = train(tmp_path, source)
    assert result.exit_code == 2
    assert what in result.output
    assert not line or f"train.py:{line}: " in result.output
    assert not (tmp_path / "jax_program").exists()


def test_gradients_that_are_divided_by_the_tokens_of_an_update(tmp_path: Path) -> None:
    result = train(tmp_path, RECIPE, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["verdict"] == "match"
    assert any("1 / elements" in note for note in found["notes"])
    script = tmp_path / "train.py"
    folder = tmp_path / "jax_program"
    proof = CliRunner().invoke(commands, ["prove", str(script), "--against", str(folder), "--json"])
    assert proof.exit_code == 0, proof.output
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace("factor = 1 / elements", "factor = 1 / 30"))
    proof = CliRunner().invoke(commands, ["prove", str(script), "--against", str(folder), "--json"])
    assert proof.exit_code == 1, proof.output
    assert "sum of gradients" in json.loads(proof.stdout)["stages"]["numeric"]


def test_gradients_that_are_divided_by_other_numbers_are_refused(tmp_path: Path) -> None:
    result = train(tmp_path, RECIPE.replace('(batch["labels"][:, 1:] != -100).sum()', "idx + 1"))
    assert result.exit_code == 2
    assert (
        "train.py:31: before it, the gradients are multiplied by factors that change"
        in result.output
    )
    assert not (tmp_path / "jax_program").exists()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("beta = 0.2", "beta is 0.1 in the first step and 0.2 in a later one"),
        ("model[0].requires_grad_(False)", "requires_grad of model.0.weight is True"),
        ("model.eval()", "training of model is True"),
        ("nn.init.zeros_(model[2].weight)", "model.2.weight is changed between two updates"),
        ("model[2].weight.data.clamp_(-0.1, 0.1)", "model.2.weight is changed between two updates"),
    ],
)
def test_a_change_after_the_compared_updates_is_refused(
    tmp_path: Path, change: str, what: str
) -> None:
    result = train(tmp_path, LATE.replace("CHANGE", change))
    assert result.exit_code == 2
    assert what in result.output
    assert not (tmp_path / "jax_program").exists()


def test_a_schedule_of_epochs_is_seen_after_the_compared_updates(tmp_path: Path) -> None:
    result = train(tmp_path, LATE.replace("CHANGE", "pass"), "--json")
    assert result.exit_code == 0, result.output
    rates = next(
        c for c in json.loads(result.stdout)["comparisons"] if c["name"] == "learning rates"
    )
    assert rates["what"] == "21 updates"
    assert "scheduler.step" not in result.stdout


def test_a_schedule_of_epochs_that_are_longer_than_the_watched_updates(tmp_path: Path) -> None:
    source = LATE.replace("CHANGE", "pass").replace("range(7)", "range(400)")
    result = train(tmp_path, source, "--json", "--updates", "2")
    assert result.exit_code == 0, result.output
    program = tmp_path / "jax_program"
    assert "updates_per_epoch = 400" in (program / "optimizer.py").read_text()
    assert "after each epoch of 400 updates" in (program / "README.md").read_text()


@pytest.mark.parametrize("epochs", ["1", "2"])
def test_a_schedule_of_epochs_in_a_run_of_few_epochs(tmp_path: Path, epochs: str) -> None:
    source = LATE.replace("CHANGE", "pass").replace("range(3)", f"range({epochs})")
    result = train(tmp_path, source, "--json")
    assert result.exit_code == 0, result.output
    program = tmp_path / "jax_program"
    assert "updates_per_epoch = 7" in (program / "optimizer.py").read_text()
    readme = (program / "README.md").read_text()
    assert "the whole training was watched: its schedule is stepped after each epoch of 7" in readme


@pytest.mark.parametrize("call", ["number / len(data) + epoch", "epoch"])
def test_a_function_of_another_file_that_sets_the_rates(tmp_path: Path, call: str) -> None:
    (tmp_path / "rates.py").write_text(
        "def adjust(optimizer, epoch, base):\n"
        "    lr = base * 0.5 ** epoch  # halved after each epoch\n"
        "    for group in optimizer.param_groups:\n"
        '        group["lr"] = lr * group["lr_scale"]\n'
        "    return lr\n"
    )
    result = train(tmp_path, ADJUSTED.replace("CALL", call), "--json", "--updates", "2")
    assert result.exit_code == 0, result.output
    optimizer = (tmp_path / "jax_program" / "optimizer.py").read_text()
    assert "def adjust(epoch):" in optimizer
    assert "rates_0" not in optimizer  # no table
    assert ("step / 30" if "number" in call else "step // updates_per_epoch") in optimizer
    assert not json.loads(result.stdout)["left"]


def test_statements_of_the_loop_that_set_the_rates_of_each_group(tmp_path: Path) -> None:
    result = train(tmp_path, IN_LOOP, "--json", "--updates", "2")
    assert result.exit_code == 0, result.output
    optimizer = (tmp_path / "jax_program" / "optimizer.py").read_text()
    assert "def rate_of(step):" in optimizer
    assert "jnp.cos(" in optimizer
    assert not json.loads(result.stdout)["left"]


def test_a_loss_that_is_handed_to_a_function_and_a_table_of_rates(tmp_path: Path) -> None:
    result = train(tmp_path, HANDED, "--json", "--updates", "2")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "jax_program"
    optimizer = (folder / "optimizer.py").read_text()
    assert "jnp.asarray(table)" in optimizer
    data = (folder / "data.py").read_text()
    assert "if (number + 1) % every == 0:\n            yield None" in data
    assert not (folder / "rollouts.py").exists()  # the guard reads the loss, the batches do not


def test_a_script_that_fails_in_its_first_updates_is_refused(tmp_path: Path) -> None:
    source = LATE.replace("CHANGE", "raise ValueError('no more')")
    result = train(tmp_path, source, "--updates", "9")
    assert result.exit_code == 2
    assert "fails after 7 updates (ValueError: no more)" in result.output
    assert not (tmp_path / "jax_program").exists()


def test_statements_on_one_line_are_refused(tmp_path: Path) -> None:
    source = LATE.replace("optimizer.zero_grad()\n        loss", "optimizer.zero_grad(); loss")
    result = train(tmp_path, source.replace("CHANGE", "pass"))
    assert result.exit_code == 2
    assert "train.py:18: several statements are on this line" in result.output


def test_a_mode_inside_of_a_model_is_refused(tmp_path: Path) -> None:
    source = LATE.replace("nn.Tanh()", "nn.Sequential(nn.Tanh(), nn.Dropout(0.1)), nn.Dropout(0.1)")
    source = source.replace("beta = 0.1", "beta = 0.1\nmodel[1].eval()").replace("CHANGE", "pass")
    result = train(tmp_path, source)
    assert result.exit_code == 2
    assert "one module is in training mode, another one is not (model.1)" in result.output


def test_a_module_of_the_script_may_have_the_name_of_a_file_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("COUNT = 7\n")
    source = LATE.replace("range(7)", "range(COUNT)").replace("CHANGE", "pass")
    result = train(tmp_path, f"from model import COUNT\n{source}")
    assert result.exit_code == 0, result.output
    assert "with script_modules():" in (tmp_path / "jax_program" / "data.py").read_text()


def test_a_module_that_a_function_imports_from_under_the_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("COUNT = 7\n")
    (tmp_path / "helper.py").write_text(
        "def count():\n    from model import COUNT\n    return COUNT\n"
    )
    source = LATE.replace("range(7)", "range(count())").replace("CHANGE", "pass")
    result = train(tmp_path, f"from helper import count\n{source}")
    assert result.exit_code == 2
    assert "a function of its data imports model" in result.output
    assert not (tmp_path / "jax_program").exists()


def test_a_program_evaluates_where_its_script_does(tmp_path: Path) -> None:
    done = train(tmp_path, EVALUATED)
    assert done.exit_code == 0, done.output
    assert re.search(r"evaluation +same .*8 values of validate, after 2, 4 updates", done.output)
    program = [sys.executable, str(tmp_path / "jax_program" / "train.py")]
    script = [sys.executable, str(tmp_path / "train.py")]
    shown = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (program, script)
    ]
    ours, theirs = ([x for x in text.splitlines() if "val loss" in x] for text in shown)
    assert ours == theirs
    assert len(ours) == 4
