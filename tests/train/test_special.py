"""Written files that have only what their script needs: helpers, methods of the step, batches."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from migrate.train.proof.program import RECORD, data_difference
from migrate.train.slice.data import MICRO
from migrate.train.write.batches import has_single_batches, plain_data_text
from migrate.train.write.special import specialized
from migrate.train.write.split import split, with_called_methods
from migrate.train.write.texts import without_folder
from tests.waiting import LIMIT

HELPERS = '''
def scaled(logs, target, how="mean", ignore=-100, share=0.0):
    """The share of `ignore`."""
    kept = target != ignore
    result = logs * kept
    if share:
        result = result * share
    if how is None:
        return result
    return result.sum() if how == "sum" else result.mean()


def loss(logits, target, how="mean", share=0.0):
    value = scaled(logits - 1, target, how, share=share)
    return value


def own(value, power=2):
    return value**power


def demand_size(holds, what):
    if not holds:
        raise ValueError(what)


def step(x, y):
    demand_size(len(x) == len(y), "only where x.shape[0] == y.shape[0]")
    labels = y + 0
    return own(loss(x, labels, CALL))
'''


@pytest.mark.parametrize(
    "call", ['how="mean"', "how=None", '"sum"', "None, 0.0", '"mean", share=0.25']
)
def test_helpers_have_what_their_calls_use_and_give_the_same(call: str) -> None:
    source = HELPERS.replace("CALL", call)
    [text] = specialized([source], ("own",))
    functions = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    names = [a.arg for a in functions["scaled"].args.args]
    assert names == ["logs", "target", *(["share"] if "0.25" in call else [])]
    assert "power=2" in text  # a function of the script
    assert "how" not in text
    assert "of `-100`" in text
    assert "demand_size" not in text
    x, y = np.arange(4.0), np.array([1, -100, 2, 3])
    values = []
    for written in (source, text):
        namespace: dict[str, Any] = {}
        exec(written, namespace)
        values.append(namespace["step"](x, y))
        with pytest.raises(ValueError, match=r"only where x.shape\[0\] == y.shape\[0\]"):
            namespace["step"](x, y[:2])
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize(
    "use",
    [
        "print(scaled(x, y), scaled(x, y, 'sum'))",  # two ways
        "scaled(x, y, **options)",
        "list(map(scaled, x, y))",
        "scaled(x, y, how)",
    ],
)
def test_options_that_a_call_may_pass_stay(use: str) -> None:
    source = "def scaled(logs, target, how='mean'):\n    return logs if how else target\n"
    [text, _] = specialized([source, f"from loss import scaled\n{use}\n"])
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert [a.arg for a in function.args.args][2:] == ["how"]
    assert "if how else" in text


STEP = """\
class Step(Module):
    def __call__(self, x, y):
        logits = self.model(x)
        loss = (logits - y) ** 2
        RETURN

    def get_loss(self, x, y):
        logits = self.model(x)
        loss = (logits - y) ** 2
        return loss.mean()
"""


@pytest.mark.parametrize(
    ("returned", "written"),
    [
        ("return loss.mean() / 4", "return self.get_loss(x, y) / 4"),
        ("return loss.mean()", "return self.get_loss(x, y)"),
        ("return loss.mean() + logits.mean()", ""),
        ("return loss.sum()", ""),
    ],
)
def test_the_step_calls_a_function_whose_statements_it_begins_with(
    returned: str, written: str
) -> None:
    source = STEP.replace("RETURN", returned)
    text, called = with_called_methods(source, ["get_loss"], "Step")
    assert (text == source, bool(called)) == (not written, bool(written))
    assert text.count("self.model(x)") == (1 if written else 2)
    assert written in text


LOOP = f"""\
import torch

seed = 3


def numbers():
    yield from range(4)


def {MICRO}():
    \"\"\"Yield each micro-batch, and None where the weights are updated.\"\"\"
    torch.manual_seed(seed)
    for step in numbers():
        x = torch.rand(2) + step
        yield {{"x": x}}
        AFTER
"""


@pytest.mark.parametrize(
    ("after", "sizes"),
    [
        ("yield None", [1, 1, 1, 1]),
        ("if step % 2 == 0:\n            continue\n        yield None", [2, 2]),
    ],
)
def test_batches_of_a_plain_loop(after: str, sizes: list[int], tmp_path: Path) -> None:
    recorded = [{"x": np.zeros(2)}]
    source = LOOP.replace("AFTER", after)
    text = plain_data_text(source, "train.py", "FOLDER", recorded, tmp_path)
    assert has_single_batches(text) == (set(sizes) == {1})
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    updates = list(namespace["batches"]())
    assert [len(micro) for micro in updates] == sizes
    torch.manual_seed(3)
    expected = [(torch.rand(2) + step).numpy() for step in range(4)]
    arrays = [batch["x"] for micro in updates for batch in micro]
    assert all(isinstance(array, np.ndarray) for array in arrays)
    np.testing.assert_array_equal(arrays, expected)
    assert "sys" not in text
    (tmp_path / "helper.py").touch()
    text = plain_data_text(f"import helper\n{source}", "train.py", "'there'", recorded, tmp_path)
    assert "sys.path.append(str('there'))" in text


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("yield None", "yield None\n        yield None"),  # with another update
        ("seed = 3", "micro = 3"),
        ("range(4)", "range(int(FOLDER.name))"),
        ('{"x": x}', "x"),
    ],
)
def test_other_loops_are_not_plain(change: str, to: str, tmp_path: Path) -> None:
    source = LOOP.replace("AFTER", "yield None").replace(change, to)
    recorded = [{"x": np.zeros(2)}]
    assert plain_data_text(source, "train.py", "FOLDER", recorded, tmp_path) == ""
    numbers = [{"x": 0.5}]  # `np.asarray` would make it an array
    source = LOOP.replace("AFTER", "yield None")
    assert plain_data_text(source, "train.py", "FOLDER", numbers, tmp_path) == ""


def test_a_plain_loop_does_not_read_the_command_line_of_the_program(tmp_path: Path) -> None:
    source = LOOP.replace("AFTER", "yield None").replace(
        "seed = 3",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--every')\n"
        "seed = int(parser.parse_known_args()[0].every or 3)",
    )
    torch.manual_seed(3)
    update = {"micro": [{"batch": {"x": torch.rand(2).numpy()}}]}
    (tmp_path / RECORD).write_bytes(pickle.dumps({"updates": [update]}))
    text = plain_data_text(source, "train.py", "FOLDER", [{"x": np.zeros(2)}], tmp_path)
    (tmp_path / "data.py").write_text(text)
    assert "reads the command line" in data_difference(tmp_path, tmp_path, LIMIT)[0]


IN_FUNCTION = f"""\
def train(rows):
    for x in rows:
        yield {{"x": x}}
        AFTER


def {MICRO}():
    \"\"\"Yield each micro-batch, and None where the weights are updated.\"\"\"
    for epoch in range(2):
        yield from train([[0], [1], [2]])
"""


def test_what_a_call_leaves_over_belongs_to_the_next_update(tmp_path: Path) -> None:
    recorded = [{"x": np.zeros(1)}]
    source = IN_FUNCTION.replace("AFTER", "yield None")
    namespace: dict[str, Any] = {}
    exec(plain_data_text(source, "train.py", "FOLDER", recorded, tmp_path), namespace)
    assert [[int(b["x"][0]) for b in micro] for micro in namespace["batches"]()] == [
        [0],
        [1],
        [2],
        [0],
        [1],
        [2],
    ]
    source = IN_FUNCTION.replace("AFTER", "if x[0] == 1:\n            yield None")
    assert plain_data_text(source, "train.py", "FOLDER", recorded, tmp_path) == ""


def test_positions_are_those_of_the_scripts_folder() -> None:
    script, output = Path("/home/me/code/train.py"), Path("/home/me/out/program")
    text = "`migrate train /home/me/code/train.py -o /home/me/out/program`; /home/me/lib.py:3"
    assert (
        without_folder(text, script, output) == "`migrate train train.py -o program`; ../lib.py:3"
    )
    text = "see https://pytorch.org; train.py:3"
    assert without_folder(text, Path("/train.py"), Path("/program")) == text


DRAWING = '''import torch

def micro_batches():
    """Yield each micro-batch, and None where the weights are updated."""
    torch.manual_seed(0)
    restore_draws()
    for epoch in range(2):
        x = torch.randn(2)
        yield {"x": x}
        yield None
'''


@pytest.mark.parametrize("inside", [False, True], ids=["once", "each epoch"])
def test_generators_are_restored_by_what_the_data_need(tmp_path: Path, *, inside: bool) -> None:
    source = DRAWING
    if inside:
        line = "    restore_draws()\n"
        source = source.replace(line, "").replace("        x =", f"    {line}        x =")
    torch.manual_seed(7)
    states = [torch.get_rng_state().numpy()]
    expected = [torch.randn(2), torch.randn(2)]
    if inside:
        torch.manual_seed(9)
        states.append(torch.get_rng_state().numpy())
        expected[1] = torch.randn(2)
    recorded = [{"x": np.zeros(2)}]
    text = plain_data_text(source, "train.py", "F", recorded, tmp_path, states=len(states))
    assert "random.setstate" not in text  # nothing but torch draws
    assert ("RESTORED" in text) is inside
    (tmp_path / "data.py").write_text(text)
    np.savez(tmp_path / "draws.npz", torch=np.stack(states))
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "data.py")}
    exec(text, namespace)
    found = [micro["x"] for [micro] in namespace["batches"]()]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    other = source.replace("import torch\n", "import random\nimport torch\n")
    text = plain_data_text(other, "train.py", "F", recorded, tmp_path, states=1)
    assert "random.setstate" in text


def test_a_table_with_a_type_is_in_the_file_that_reads_it() -> None:
    """`GATES: dict[str, int] = …` of a recurrent layer."""
    modeling = """
GATES: dict[str, int] = {"GRU": 3}

SCALE: float = 2.0


class Cell:
    def __call__(self, x):
        return GATES["GRU"] * x


class Step:
    def setup(self):
        self.cell = Cell()

    def __call__(self, x):
        return self.cell(x) * SCALE
"""
    sources = split(modeling, "t.py")
    assert "GATES: dict" in sources.model
    assert "GATES: dict" not in sources.loss
    assert "SCALE: float" in sources.loss
    with pytest.raises(AssertionError, match="no place in the program"):
        split(f"{modeling}\n\nprint(1)\n", "t.py")
