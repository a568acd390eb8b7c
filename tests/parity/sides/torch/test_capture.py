"""Capturing the layers of torch models."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.torch.capture.tree import (
    call_leaves,
    leaves,
    replaced,
    to_numpy,
    to_tensor,
)
from tests.parity.sides.torch.torch_made import (
    Attention,
    Convolutions,
    Deep,
    Recurrent,
    Reused,
    captured,
    errors,
    floats,
    inputs_for,
    runner,
)

HERE = Path(__file__).parent / "torch_made.py"


def line(text: str) -> int:
    return HERE.read_text().splitlines().index(text) + 1


def paths(refs: Any) -> list[str]:
    return [ref.path for ref in refs]


@dataclasses.dataclass
class Answer:
    logits: Any
    more: Any = None


Pair = namedtuple("Pair", "left right")


def test_tensors_are_found_in_any_structure() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    value = (one, {"a": [two], "b": Answer(three)}, Pair(one, None), "text", object())
    assert [path for path, _ in leaves(value)] == ["0", "1.a.0", "1.b.logits", "2.0"]
    assert [path for path, _ in leaves(one)] == [""]
    assert [path for path, _ in call_leaves((one,), {"mask": two})] == ["0", "mask"]


def test_a_structure_keeps_all_but_what_is_replaced() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    thing = object()
    value = {"a": [one, thing], "b": Answer(one, 3), "c": Pair(one, 4)}
    new = replaced(value, {"a.0": two, "b.logits": two, "c.0": two})
    assert new["a"][0] is two
    assert new["a"][1] is thing
    assert new["b"].logits is two
    assert new["b"].more == 3
    assert new["c"] == Pair(two, 4)
    assert value["a"][0] is one
    assert replaced(value, {}) is value


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool])
def test_values_go_to_numpy_and_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.5, 0.0], [-2.25, 3.0]]).to(dtype)
    array = to_numpy(tensor)
    assert array.dtype.name == {"complex64": "float32"}.get(
        str(dtype).removeprefix("torch."), str(dtype).removeprefix("torch.")
    )
    assert torch.equal(to_tensor(array, tensor), tensor)


def test_a_tensor_of_another_shape_or_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[2\] instead of \[3\]"):
        to_tensor(np.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="int64"):
        to_tensor(np.ones(2, np.int64), torch.ones(2))


def test_what_the_dtype_cannot_hold_becomes_its_largest() -> None:
    least = torch.finfo(torch.float64).min
    array = np.array([least, -np.inf, np.nan, 1.0])
    values = to_tensor(array, torch.ones(4)).tolist()
    assert values[0] == torch.finfo(torch.float32).min
    assert values[1] == -np.inf
    assert np.isnan(values[2])
    assert values[3] == 1.0


def test_calls_nest_and_end_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    model = runner(Deep())
    dump = captured(model, floats(tmp_path, "x", (3, 16)), tmp_path / "dump")
    ended = [call.layer for call in dump.calls if call.input == 1]
    block = [f"blocks.0.{name}" for name in ("norm", "up", "down")]
    assert ended[:4] == [*block, "blocks.0"]
    assert ended[-2:] == ["blocks.3", ""]
    orders = [call.order for call in dump.calls if call.input == 1]
    assert orders == list(range(17))
    assert {call.number for call in dump.calls} == {0}
    layer = dump.layers["blocks.2.norm"]
    assert layer.parent == "blocks.2"
    assert layer.weights == ("blocks.2.norm.weight", "blocks.2.norm.bias")
    assert layer.settings["eps"] == 1e-5
    assert layer.kind == "LayerNorm"
    text = "        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))"
    assert layer.called == f"torch_made.py:{line(text)}"
    assert dump.layers["blocks.2"].defined == f"torch_made.py:{line(text) - 1}"
    assert dump.layers["blocks"].parent == ""
    assert dump.layers[""].parent is None
    assert dump.layers[""].called == ""


def test_the_outputs_are_the_models(tmp_path: Path) -> None:
    model = Recurrent()
    side = runner(model)
    inputs = inputs_for(side, tmp_path)
    dump = captured(side, inputs, tmp_path / "dump")
    with torch.no_grad():
        wanted = model(torch.tensor(inputs[1]["ids"]))
    refs = {ref.path: ref for ref in dump.outputs[1]}
    assert list(refs) == ["logits", "state.0"]
    np.testing.assert_array_equal(dump.tensor(refs["logits"]), wanted["logits"].numpy())
    (call,) = (one for one in dump.of("lstm") if one.input == 1)
    assert paths(call.arguments) == ["0"]
    assert paths(call.outputs) == ["0", "1.0", "1.1"]
    assert dump.layers["lstm"].settings["batch_first"] is True
    assert dump.layers["lstm"].weights[0] == "lstm.weight_ih_l0"


def test_a_reused_module_is_counted(tmp_path: Path) -> None:
    dump = captured(runner(Reused()), floats(tmp_path, "x", (3, 16)), tmp_path / "dump")
    assert [(c.number, c.input) for c in dump.of("again")] == [
        (number, at) for at in (0, 1) for number in range(3)
    ]


def test_what_is_written_in_place_later_is_taken_before(tmp_path: Path) -> None:
    side = runner(Convolutions())
    dump = captured(side, floats(tmp_path, "x", (2, 3, 8, 8), 1), tmp_path / "dump")
    (conv,), relus = dump.of("second"), list(dump.of("relu"))
    before = dump.tensor(conv.outputs[0])
    assert before.min() < 0
    np.testing.assert_array_equal(dump.tensor(relus[1].arguments[0]), before)
    np.testing.assert_array_equal(dump.tensor(relus[1].outputs[0]), before.clip(0))


def test_a_tensor_that_calls_share_is_on_disk_once(tmp_path: Path) -> None:
    dump = captured(runner(Deep()), floats(tmp_path, "x", (3, 16), 1), tmp_path / "dump")
    places = {(r.file, r.key) for c in dump.calls for r in (*c.arguments, *c.outputs)}
    # The input; of each block the outputs of norm, up, gelu (as down's argument), down, and its own.
    assert len(places) == 1 + 4 * 5
    assert {(r.file, r.key) for r in dump.outputs[0]} <= places


@pytest.mark.long
def test_nothing_is_held_when_a_layer_has_ended(tmp_path: Path) -> None:
    held: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Watch(nn.Module):
        def forward(self, x: Any) -> Any:
            gc.collect()
            alive.append(sum(ref() is not None for ref in held))
            y = x * 2
            held.append(weakref.ref(y))
            return y

    model = nn.Sequential(*[Watch() for _ in range(6)])
    captured(runner(model), floats(tmp_path, "input", (3, 16), 1), tmp_path / "dump")
    assert max(alive) == 1  # the argument itself


def test_modules_past_whose_forward_pass_the_weights_are_used_have_no_call(tmp_path: Path) -> None:
    fast = torch.backends.mha.get_fastpath_enabled()
    inputs = floats(tmp_path, "x", (2, 5, 16))
    dump = captured(runner(Attention()), inputs, tmp_path / "dump")
    assert list(dump.of("attend.out_proj")) == []
    layer = dump.layers["attend.out_proj"]
    assert layer.weights == ("attend.out_proj.weight", "attend.out_proj.bias")
    assert layer.parent == "attend"
    assert any("fast path" in note for note in dump.facts.notes)
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_the_fast_path_hides_no_layers(tmp_path: Path) -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    dump = captured(runner(encoder), floats(tmp_path, "src", (2, 5, 16)), tmp_path / "dump")
    called = {call.layer for call in dump.calls}
    assert {"self_attn", "linear1", "norm2"} <= called
    assert dump.layers[""].settings["activation"] == "relu"


def test_the_truth_is_float64_throughout(tmp_path: Path) -> None:
    class Norm(nn.Module):
        def forward(self, x: Any) -> Any:
            wide = x.to(torch.float32)
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))
            return (wide * scale).type_as(x), torch.softmax(x, -1, dtype=torch.float32)

    inputs = floats(tmp_path, "x", (3, 16), 1)
    dump = captured(runner(Norm()), inputs, tmp_path / "dump", TRUTH)
    x = inputs[0]["x"].astype(np.float64)
    assert [ref.dtype for ref in dump.outputs[0]] == ["float64", "float64"]
    np.testing.assert_allclose(
        dump.tensor(dump.outputs[0][0]),
        x / np.sqrt((x**2).mean(-1, keepdims=True)),
        rtol=1e-14,
    )
    assert dump.facts.notes == ()


def test_where_the_truth_is_not_float64_a_note_says_so(tmp_path: Path) -> None:
    class Numpy(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.from_numpy(x.numpy().astype(np.float32))

    model = nn.Sequential(nn.Linear(16, 4), Numpy())
    dump = captured(runner(model), floats(tmp_path, "input", (3, 16)), tmp_path / "dump", TRUTH)
    (note,) = dump.facts.notes
    assert note == "the truth is not float64 throughout: 1 (and 1 more) gives float32"


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        (SideSettings(), 0.0, 1e-6),
        (SideSettings(precision="high"), 1e-6, 1e-4),
        (SideSettings(precision="default"), 1e-4, 1e-2),
        (SideSettings(dtype="bfloat16"), 1e-4, 2e-2),
    ],
    ids=["float32", "high", "default", "bfloat16"],
)
def test_settings_decide_the_error(
    tmp_path: Path, settings: SideSettings, low: float, high: float
) -> None:
    side = runner(Deep())
    inputs = floats(tmp_path, "x", (32, 16))
    truth = captured(side, inputs, tmp_path / "truth", TRUTH)
    dump = captured(side, inputs, tmp_path / "dump", settings)
    assert low < errors(dump, truth)[""] < high
    assert dump.outputs[0][0].dtype == settings.dtype
    assert next(side.module.parameters()).dtype == torch.float32


def test_rows_a_part_at_a_time(tmp_path: Path) -> None:
    side = runner(Deep())
    inputs = floats(tmp_path, "x", (5, 16), 1)
    whole = captured(side, inputs, tmp_path / "whole")
    parts = captured(side, inputs, tmp_path / "parts", SideSettings(batch=2))
    assert parts.outputs[0][0].shape == (5, 16)
    np.testing.assert_allclose(
        parts.tensor(parts.outputs[0][0]), whole.tensor(whole.outputs[0][0]), rtol=1e-5, atol=1e-6
    )
    assert [call.number for call in parts.of("blocks.0")] == [0, 1, 2]


def test_without_layers_there_are_outputs_only(tmp_path: Path) -> None:
    inputs = floats(tmp_path, "x", (3, 16))
    dump = captured(runner(Deep()), inputs, tmp_path / "dump", layers=False)
    assert dump.calls == ()
    assert sorted(dump.outputs) == [0, 1]


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        (
            "wrong",
            "does not take the input wrong and needs the input x",
            "the model takes: x, mask",
        ),
        ("masks", "does not take the input masks", "did you mean mask? the model takes: x, mask"),
        ("mask", ": needs the input x", "the model takes: x, mask"),
    ],
)
def test_other_arguments_are_one_line(name: str, what: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(InputsError) as caught:
        captured(runner(Attention()), floats(tmp_path, name, (2, 5, 16)), tmp_path / "dump")
    assert what in caught.value.what
    assert caught.value.remedy == remedy
    assert not (tmp_path / "dump" / "dump.json").exists()


def test_what_the_forward_pass_raises_is_one_line_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE.parent)
    with pytest.raises(ParityError) as caught:
        captured(runner(Deep()), floats(tmp_path, "x", (3, 15)), tmp_path / "dump")
    text = "        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))"
    assert "RuntimeError: Given normalized_shape=[16]" in caught.value.what
    assert caught.value.what.endswith(f"(torch_made.py:{line(text)})")
    assert "\n" not in str(caught.value)


def test_outputs_that_change_structure_are_refused(tmp_path: Path) -> None:
    class Fickle(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"a": x} if len(x) == 1 else {"b": x, "c": x}

    shapes = [{"x": np.ones((rows, 2), np.float32)} for rows in (1, 2)]
    inputs = write_inputs(tmp_path / "inputs", shapes)
    with pytest.raises(
        ParityError, match=r"input 1 returns other outputs \(b, c\) than input 0 \(a\)"
    ):
        captured(runner(Fickle()), inputs, tmp_path / "dump")


def test_a_model_without_tensors_in_its_outputs_is_refused(tmp_path: Path) -> None:
    class Number(nn.Module):
        def forward(self, x: Any) -> Any:
            return float(x.sum())

    with pytest.raises(ParityError, match="returns a float without tensors"):
        captured(runner(Number()), floats(tmp_path, "x", (2, 2)), tmp_path / "dump")


def test_positions_are_names_that_are_numbers(tmp_path: Path) -> None:
    inputs = floats(tmp_path, "0", (3, 16))
    dump = captured(runner(Deep()), inputs, tmp_path / "dump")
    assert isinstance(dump, Dump)
    (call,) = (one for one in dump.of("") if one.input == 0)
    assert paths(call.arguments) == ["0"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_has_outputs_and_a_note(tmp_path: Path) -> None:
    model = nn.Sequential(torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4)), nn.ReLU())
    dump = captured(runner(model), floats(tmp_path, "input", (3, 4), 1), tmp_path / "dump")
    assert [call.layer for call in dump.calls] == ["1", ""]
    assert dump.facts.notes == ("layers inside TorchScript cannot be watched",)
    whole = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))
    dump = captured(runner(whole), floats(tmp_path / "b", "0", (3, 4), 1), tmp_path / "whole")
    assert dump.calls == ()
    assert dump.outputs[0][0].shape == (3, 4)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_model_that_keeps_a_tensor_of_its_graph_is_copied(tmp_path: Path) -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    model(torch.ones(1, 4))
    inputs = floats(tmp_path, "input", (3, 4), 1)
    truth = captured(runner(model), inputs, tmp_path / "truth", TRUTH)
    assert errors(captured(runner(model), inputs, tmp_path / "dump"), truth)[""] < 1e-6
