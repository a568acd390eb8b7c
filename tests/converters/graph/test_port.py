"""A port computes what the original does, for its shapes and others, and looks as one would write it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import GraphError, Port, port
from converters.graph.writing import linen
from converters.graph.writing.model import Model
from tests.converters.graph import models
from tests.converters.graph.flax_side import Inputs, variables


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Callable[[], torch.nn.Module], list[Inputs]]] = {
    "mlp": (lambda: models.Mlp(6, 10), [{"x": real(2, 3, 6)}, {"x": real(1, 5, 6)}]),
    "stack": (models.Stack, [{"ids": ids(11, 2, 4)}, {"ids": ids(11, 3, 7)}]),
    "pyramid": (models.Pyramid, [{"x": real(2, 3, 12, 8)}, {"x": real(5, 3, 12, 8)}]),
    "squeezed": (models.Squeezed, [{"x": real(2, 3, 6, 5)}, {"x": real(3, 3, 6, 5)}]),
    "tagger": (models.Tagger, [{"ids": ids(9, 2, 6)}, {"ids": ids(9, 3, 4)}]),
    "encoder": (models.Encoder, [{"x": real(2, 5, 8)}, {"x": real(3, 7, 8)}]),
    "two ways": (models.TwoWays, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "owner": (models.Owner, [{"x": real(2, 6)}, {"x": real(5, 6)}]),
    "turned": (models.Turned, [{"x": real(2, 5, 6, 4)}, {"x": real(3, 5, 6, 4)}]),
    "cut": (models.Cut, [{"x": real(2, 5)}, {"x": real(3, 5)}]),
    "causal": (models.Causal, [{"x": real(2, 5, 12)}, {"x": real(3, 7, 12)}]),
    "grid": (models.Grid, [{"x": real(10, 4), "grid": torch.tensor([[2, 3], [1, 4]])}]),
    "checked": (models.Checked, [{"ids": ids(9, 2, 5)}, {"ids": ids(9, 3, 7)}]),
    "lender": (models.Lender, [{"ids": ids(7, 2, 5)}, {"ids": ids(7, 3, 4)}]),
    "aware": (models.Aware, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "solves": (models.Solves, [{"x": real(2, 5, 4)}, {"x": real(3, 7, 4)}]),
    "joined": (
        models.Joined,
        [
            {"first": real(2, 4, 3), "second": real(2, 6, 3)},
            {"first": real(2, 7, 3), "second": real(2, 5, 3)},
        ],
    ),
    "normed": (models.Normed, [{"x": real(2, 3, 6, 5)}, {"x": real(3, 3, 6, 5)}]),
    "biased": (models.Biased, [{"x": real(2, 5, 4)}, {"x": real(3, 5, 4)}]),
    "called lists": (models.CalledLists, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "scaled images": (models.ScaledImages, [{"x": real(2, 3, 6, 6)}]),
    "keeper": (models.Keeper, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "shifted": (models.Shifted, [{"given": real(2, 1, 5, 6)}, {"given": real(3, 1, 5, 6)}]),
    "halves": (models.Halves, [{"x": real(2, 3, 4)}, {"x": real(3, 3, 4)}]),
    "giver": (models.Giver, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "commented": (models.Commented, [{"x": real(2, 3, 4)}, {"x": real(3, 3, 4)}]),
    "overlapping": (models.Overlapping, [{"x": real(2, 8, 3)}, {"x": real(3, 12, 3)}]),
    "filled": (models.Filled, [{"x": real(2, 5)}, {"x": real(3, 5)}]),
    "sequences": (models.Sequences, [{"x": real(2, 3, 5, 7)}, {"x": real(3, 3, 5, 7)}]),
    "attentive": (
        models.Attentive,
        [
            {"x": real(2, 5, 6), "memory": real(2, 7, 4)},
            {"x": real(3, 5, 6), "memory": real(3, 8, 4)},
        ],
    ),
    "two lstms": (models.TwoLstms, [{"x": real(2, 5, 4)}, {"x": real(3, 6, 4)}]),
    "repeated": (models.Repeated, [{"x": real(2, 5, 4)}, {"x": real(3, 5, 4)}]),
    "framed": (models.Framed, [{"x": real(2, 2, 12)}, {"x": real(3, 2, 17)}]),
    "named": (
        lambda: models.Named(models.HeadsArgs()),
        [{"x": real(2, 5, 24)}, {"x": real(3, 7, 24)}],
    ),
    "swapped": (models.Swapped, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "modulated": (
        models.Modulated,
        [{"x": real(2, 5, 6), "vec": real(2, 6)}, {"x": real(3, 4, 6), "vec": real(3, 6)}],
    ),
    "stored": (
        lambda: models.Stored(SimpleNamespace(width=7, classes=3, features=5)),
        [{"x": real(2, 5)}, {"x": real(3, 5)}],
    ),
    "changes": (lambda: models.Changes(False), [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "changes a view": (lambda: models.Changes(True), [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "routed": (
        models.Routed,
        [
            {"x": real(2, 4), "ids": torch.tensor([[0, 4, 2, 2], [4, 3, 5, -1]])},
            {"x": real(3, 4), "ids": torch.tensor([[1, 1, 1, 7], [-2, 0, 0, 9], [0, 0, 0, 0]])},
        ],
    ),
    "refined": (models.Refined, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "quiet": (models.Quiet, [{"x": real(2, 4)}, {"x": real(3, 4)}]),
    "rows": (models.Rows, [{"x": real(2, 4, 9)}, {"x": real(3, 4, 7)}]),
    "plain sequence": (models.plain_sequence, [{"input": real(2, 4)}, {"input": real(3, 4)}]),
    "two towers": (
        models.TwoTowers,
        [{"x": real(2, 5, 6), "y": real(2, 4, 6)}, {"x": real(3, 7, 6), "y": real(3, 8, 6)}],
    ),
    "stages": (models.Stages, [{"x": real(2, 4, 5)}, {"x": real(3, 7, 5)}]),
    "scanned": (models.Scanned, [{"x": real(2, 7, 6)}, {"x": real(3, 7, 6)}]),
    "wide state": (models.WideState, [{"x": real(2, 7, 6)}, {"x": real(3, 7, 6)}]),
    "two states": (models.TwoStates, [{"x": real(7, 2, 5)}]),
    "backwards": (models.Backwards, [{"x": real(6, 2, 5)}]),
    "in place": (models.InPlace, [{"x": real(2, 5)}, {"x": real(3, 5)}]),
}


def made(name: str) -> tuple[torch.nn.Module, list[Inputs], Port]:
    torch.manual_seed(0)
    factory, inputs = CASES[name]
    model = factory().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model, inputs, port(model, inputs[0])


def leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(one) for one in jax.tree.leaves(value)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases(
    "pyramid",
    "named",
    "giver",
    "commented",
    "refined",
    "attentive",
    "two towers",
    "tagger",
    "encoder",
    "two lstms",
    "shifted",
    "stack",
    "overlapping",
)
def test_it_computes_what_torch_does(name: str, load: Callable[[Port], Any]) -> None:
    model, inputs, written = made(name)
    assert not written.missing
    flax, weights = load(written), variables(model, written, inputs[0])
    for given in inputs:
        with torch.no_grad():
            given_back = model(**given)
        if is_dataclass(given_back):
            given_back = vars(given_back)
        wanted = jax.tree.map(lambda one: one.numpy(), given_back)
        arrays = {key: jnp.asarray(value.numpy()) for key, value in given.items()}
        with jax.default_matmul_precision("highest"):
            found = jax.jit(lambda w, a: flax.apply(w, **a))(weights, arrays)
        if is_dataclass(found):
            found = vars(found)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for one, other in zip(leaves(found), leaves(wanted), strict=True):
            assert one.shape == other.shape
            distance = np.linalg.norm(one - other) / np.linalg.norm(other)
            # float32's rounding over a few layers
            assert distance < 2e-6


def test_a_list_of_blocks_is_a_loop_over_one_class() -> None:
    text = made("stack")[2].modeling
    assert text.count("class Block(") == 1
    assert "for block in self.blocks:" in text
    assert "for _ in range(" in text


def test_blocks_that_are_given_rows_in_two_orders_are_one_class() -> None:
    source = made("rows")[2].modeling
    assert source.count("class Row(") == 1
    assert ".swapaxes" not in source.partition("class Row(")[2].partition("\nclass ")[0]


def test_forms_of_a_class_are_one_class_with_fields_and_arguments() -> None:
    """What an argument tells needs no field; a part that only some have is one: `has_cross`."""
    source = made("two towers")[2].modeling
    assert re.findall(r"class (\w+)", source) == ["Module", "OwnBias", "BiasedLayer", "TwoTowers"]
    assert "    has_bias: bool\n" in source
    assert (
        "        if self.has_bias:\n            self.table = nn.Embed(20, 1, **self.dtypes)"
        in source
    )
    assert "key_states: Array | None=None, bias: Array | None=None" in source
    assert "        elif bias is None:\n" in source
    assert "    has_cross: bool\n" in source
    assert "BiasedLayer(self.config, has_bias=False, has_cross=True, **self.numerics)" in source


def test_a_loop_over_data_is_a_scan() -> None:
    """What goes on from turn to turn is its state, what is read at the turn's number its parts."""
    source = made("scanned")[2].modeling
    step = "def selective_scan_step(x: Array, decay: Array, scaled: Array, writes: Array)"
    assert f"{step} -> tuple[Array, Array]:\n    x = decay * x + scaled\n" in source
    over = "x, (decay.swapaxes(0, 1), scaled.swapaxes(0, 1), writes.swapaxes(0, 1)))"
    assert (
        f"_, y = jax.lax.scan(lambda state, turn: selective_scan_step(state, *turn), {over}"
        in source
    )
    two = made("two states")[2].modeling
    assert "jax.lax.slice_in_dim(x, 1, 7, axis=0)" in two
    assert "jax.lax.scan" not in made("backwards")[2].modeling
    assert "state, *turn), x.astype(jnp.float32), " in made("wide state")[2].modeling


def test_a_long_title_is_of_several_lines() -> None:
    title = "AutoencoderKLQwenImage in Flax, ported from " + "diffusers.models.autoencoders.kl." * 2
    first = linen.modeling(Model((), {}), "Config", title).splitlines()[:2]
    assert first[0].startswith('"""AutoencoderKLQwenImage in Flax')
    assert all(len(line) <= 100 for line in first)
    assert " ".join(first).endswith('."""')


def test_the_original_s_own_test_tells_forms_apart() -> None:
    """`if self.shift > 0` is that again, and four forms are two fields."""
    source = made("stages")[2].modeling
    assert re.findall(r"class (\w+)", source) == ["Module", "Stage", "Stages"]
    assert "        if self.shift > 0:\n" in source
    assert "        if self.has_down:\n            x = self.down(x)" in source


def test_a_function_that_is_called_twice_is_written_once() -> None:
    text = made("stack")[2].modeling
    assert text.count("def halves_turned(") == 1
    assert text.count("halves_turned(") == 3


def test_a_tied_head_attends_with_the_embedding() -> None:
    text = made("stack")[2].modeling
    assert "self.embed.attend(" in text
    assert "self.head" not in text


def test_a_sequential_is_one_call() -> None:
    _, _, written = made("sequences")
    assert "hidden: int = 10" in written.config
    setup, _, body = written.modeling.partition("class Sequences")[2].partition("def __call__")
    assert ".layers[" not in body
    assert all(f"self.{name}(" in body for name in ("stem", "mlp", "head"))
    assert "nn.Dropout(0.1), nn.Sequential([" in setup, "told the mode by the Sequential around it"
    assert "dense: Any = partial(nn.Dense, **self.numerics)" in setup
    assert "self.out = [dense(self.config.dim), nn.Dropout(0.1)]" in setup
    assert setup.count("lambda x: x]") == 1, "the Identity, and nothing else"


@pytest.mark.long
def test_layers_that_are_called_as_most_are_have_short_sources() -> None:
    text = made("attentive")[2].modeling
    assert "self.own = nn.MultiHeadDotProductAttention(" in text
    assert "self.cross(x, memory)" in text
    assert "self.masked = MultiheadAttention(" in text
    assert "LSTM(hidden_size=self.config.hidden, num_layers=2, bidirectional=True, " in text
    assert "def run(" not in text
    both = made("two lstms")[2].modeling
    assert both.count("class LSTM(") == 1
    assert "def run(" in both


def test_what_broadcasting_does_is_left_to_it() -> None:
    assert "broadcast_to" not in made("repeated")[2].modeling


def test_values_have_the_names_of_the_original() -> None:
    text = made("stack")[2].modeling
    assert "residual = hidden_states" in text
    assert "def __call__(self, hidden_states: Array, scale: Array)" in text


def test_images_are_turned_at_the_model_s_border_only() -> None:
    text = made("pyramid")[2].modeling
    assert text.count("moveaxis") == 1


def test_sizes_are_settings() -> None:
    written = made("mlp")[2]
    assert "hidden: int = 10" in written.config
    assert "nn.Dense(self.config.hidden, **self.numerics)" in written.modeling


def test_what_a_constructor_computes_is_computed() -> None:
    written = made("owner")[2]
    assert "1.0 / 10000.0 **" in written.modeling  # a number that the original writes there
    assert "self.odd = jnp.array([3.0, 1.0, 4.0], jnp.float32)" in written.modeling
    assert not written.constants


def test_values_that_one_line_names_together_have_their_names() -> None:
    _, _, written = made("causal")
    body = written.modeling.partition("__call__")[2]
    assert all(f"\n        {name} = " in body for name in "qkv"), body
    assert "swapaxes" not in body, "turned to heads and back"


def test_its_free_sides_are_named() -> None:
    written = made("stack")[2]
    assert written.inputs[0].shape == ("batch", "length")


def test_inputs_that_the_model_does_not_take_are_one_line() -> None:
    with pytest.raises(GraphError, match="Mlp does not take these inputs"):
        port(models.Mlp(6, 10), {"y": real(2, 6)})


def test_an_operator_without_a_lowering_is_listed_with_its_line() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.poisson(x) + torch.empty_like(x).cauchy_()

    missing = port(Odd(), {"x": torch.rand(2, 3)}).missing
    assert {one.op.split(".")[1] for one in missing} == {"poisson", "cauchy"}
    assert all("test_port.py:" in one.line for one in missing)


def test_a_stub_stands_where_an_operator_is_missing() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.poisson(x) + 1

    text = port(Odd(), {"x": torch.rand(2, 3)}).modeling
    assert "def aten_poisson_default(" in text
    assert "raise NotImplementedError(" in text
    assert "return aten_poisson_default(x" in text


@pytest.mark.parametrize("jitted", [True, False])
def test_an_input_that_sizes_rest_on_is_refused_with_other_values(
    load: Callable[[Port], Any], jitted: bool
) -> None:
    model, inputs, written = made("grid")
    assert written.baked == ("grid: [[2, 3], [1, 4]]",)
    assert any("fixed: grid" in note for note in written.notes)
    flax, weights = load(written), variables(model, written, inputs[0])
    run = jax.jit(flax.apply) if jitted else flax.apply
    other = jnp.asarray([[1, 4], [2, 3]])
    with pytest.raises(Exception, match="this port takes"):
        np.asarray(run(weights, x=jnp.asarray(inputs[0]["x"].numpy()), grid=other))


def test_a_check_that_the_port_does_not_make_is_said() -> None:
    notes = made("checked")[2].notes
    assert (
        sum("a check of values that the port does not make: models.py:" in one for one in notes)
        == 2
    )


@pytest.mark.parametrize("model", [models.Chooses(), models.Counts()])
def test_what_rests_on_values_otherwise_is_refused_with_its_line(model: torch.nn.Module) -> None:
    with pytest.raises(GraphError, match=r"models\.py:\d+: "):
        port(model, {"x": torch.full((2, 2), 2.0)})


def test_what_torch_cannot_record_is_one_line_with_its_place(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(GraphError, match=r"models\.py:\d+: RuntimeError: .*fake impl") as raised:
        port(models.Unknown(), {"x": real(2, 2)})
    assert "The error above" not in str(raised.value)
    with pytest.raises(GraphError):
        port(models.Chooses(), {"x": real(2, 2)})
    assert capfd.readouterr().err == ""


def test_memory_that_is_shared_by_strides_and_changed_is_refused() -> None:
    with pytest.raises(GraphError, match=r"models\.py:\d+: .*changed in place"):
        port(models.SharedMemory(), {"x": real(2, 2)})


def test_strides_that_read_beyond_the_tensor_are_listed() -> None:
    (missing,) = port(models.Neighbor(), {"x": real(2, 3)}).missing
    assert missing.op == "aten.as_strided.default"
    assert "models.py:" in missing.line


def test_a_choice_among_equal_values_is_said() -> None:
    apart = port(models.Choosing(), {"x": real(2, 5, 3)})
    assert not apart.notes
    tied = port(models.Choosing(), {"x": -real(2, 5, 3).abs()})
    assert [note.partition(";")[0].rpartition(":")[0] for note in tied.notes] == [
        "a choice among equal values: topk at models.py"
    ]


def test_comments_stay_with_their_statements() -> None:
    text = port(models.Commented(), {"x": real(2, 3, 4)}).modeling
    lines = [line.strip() for line in text.splitlines()]
    found = {line: lines[at + 1] for at, line in enumerate(lines) if line.startswith("#")}
    assert list(found) == [
        "# the mean of all rows,",
        '# which is "taken" off',
        "# with what it was",
        "# and what comes out",
    ]
    assert found['# which is "taken" off'].startswith("x = x - x.mean(")
    assert found["# with what it was"].startswith("x = fc(x) + x")
    assert found["# and what comes out"].startswith("return ")


def test_comments_within_other_lines_and_on_heads_stay() -> None:
    text = port(models.CommentedWithin(), {"x": real(2, 3, 4)}).modeling
    lines = [line.strip() for line in text.splitlines()]
    body = lines[next(at for at, line in enumerate(lines) if line.startswith("def __call__")) + 1 :]
    found = [line for line in body if line.startswith("#")]
    assert body[0] == "# all that is measured"
    assert {"# scaled once", "# and a second time", "# all of it again"} <= set(found)
    assert len(found) == len(set(found))
    assert not any("channels" in line for line in found)


def test_a_comment_stands_once_above_a_statement_of_several_lines() -> None:
    assert port(models.Long(), {"x": real(2, 3)}).modeling.count("# larger ones") == 1


def test_shapes_and_sizes_have_the_names_of_the_original() -> None:
    text = made("named")[2].modeling
    assert "head_shape = (*x.shape[:2], -1, self.size_of_each_head)" in text
    assert text.count(".reshape(head_shape)") == 3
    # int(…) is written once.
    assert text.count("self.config.width / self.config.number_of_heads") == 1
    assert text.count("nn.Dense(self.size_of_all_heads, **self.numerics)") == 3


def test_sizes_come_from_what_the_original_calls_args() -> None:
    written = made("named")[2]
    assert "length: int = 17" in written.config
    assert "jnp.arange(self.config.length" in written.modeling
    assert "jnp.full((1, self.config.length), 1.0" in written.modeling
    # of layers that are added under a name that is put together
    assert "self.fc_2 = nn.Dense(self.config.width, **self.numerics)" in written.modeling


def test_results_of_a_function_keep_their_names_in_whatever_order() -> None:
    text = made("swapped")[2].modeling
    assert "above, below = both_ways(" in text


def test_tensors_of_an_object_bear_its_name_and_that_of_the_attribute() -> None:
    text = made("modulated")[2].modeling
    assert "one_shift, one_scale, two_shift, two_scale = self.mod(vec)" in text
    assert "mod_shift, mod_scale = self.last_mod(vec)" in text


def test_sizes_come_from_an_object_that_no_module_keeps() -> None:
    written = made("stored")[2]
    assert "(self.config.features, self.config.width))" in written.modeling
    assert "self.inner = nn.Dense(self.config.width, **self.numerics)" in written.modeling
    assert "self.head = nn.Dense(self.config.classes, **self.numerics)" in written.modeling
    for said in ("features: int = 5", "width: int = 7", "classes: int = 3"):
        assert said in written.config


def test_statements_that_are_written_again_and_again_are_a_loop() -> None:
    """The first turn goes on from something else; of the last nobody reads the state."""
    source = made("refined")[2].modeling
    assert (
        "        guesses: list[Array] = []\n"
        "        for _ in range(4):\n"
        "            guesses.append(jnp.sin(guess) * 2)\n"
        "            state, change = self.update(state, guess)\n"
        "            guess = guess + change\n"
    ) in source
    assert "return (*guesses, found_5)" in source


def test_a_region_without_autocast_leaves_no_trace() -> None:
    source = made("quiet")[2].modeling
    assert "y = self.inner(x)" in source
    assert "return Shift(shift=y, scale=" in source


def test_a_solver_stays_where_other_targets_get_a_loop() -> None:
    assert "jax.scipy.linalg.solve_triangular(system, " in made("solves")[2].modeling


def test_the_garbage_collector_is_left_as_it_was() -> None:
    before = gc.get_threshold()
    model, inputs, _ = made("solves")
    assert gc.get_threshold() == before
    with pytest.raises(GraphError, match="does not take these inputs"):
        port(model, {"other": inputs[0]["x"]})
    assert gc.get_threshold() == before


def test_experts_are_counted_and_chosen_without_functions_of_ours() -> None:
    source = made("routed")[2].modeling
    assert "tokens = jax.nn.one_hot(ids.reshape(-1), 5).sum(axis=0)" in source
    assert (
        "jnp.put_along_axis(jnp.zeros_like(scores), chosen_1, 1, axis=-1, inplace=False)" in source
    )
    assert not re.findall("^def ", source, re.M)


class Shouted(torch.nn.Module):
    """Arguments that differ in their case alone."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q = torch.nn.Linear(4, 3)

    def forward(self, Z: torch.Tensor, z: torch.Tensor, z_H: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return self.W_q(z) * z_H - Z


def test_inputs_keep_the_case_of_their_names(load: Callable[..., Any]) -> None:
    model = Shouted().eval()
    inputs = {"z": torch.randn(2, 4), "z_H": torch.randn(2, 3), "Z": torch.randn(2, 3)}
    written = port(model, inputs)
    assert [one.name for one in written.inputs] == list(inputs)
    given = {name: one.numpy() for name, one in inputs.items()}
    outputs = load(written).apply(variables(model, written, inputs), **given)
    np.testing.assert_allclose(outputs, model(**inputs).detach(), atol=1e-6)


class Renamed(torch.nn.Module):
    """Operators under their second names, and those that are several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.multiply(self.lin(x), torch.divide(x, 2.0))
        y = torch.where(torch.greater_equal(y, x), torch.absolute(y), torch.negative(x))
        first, second = torch.hsplit(y, 2)
        loss = torch.nn.functional.triplet_margin_loss(y, x, x.flip(0))
        return torch.tensordot(y, x, dims=([1], [1])), torch.subtract(first, second), loss


def test_operators_that_torch_makes_of_others(load: Callable[..., Any]) -> None:
    model = Renamed().eval()
    inputs = {"x": real(3, 4)}
    written = port(model, inputs)
    assert not written.missing
    assert written.inputs[0].shape == ("batch", 4)
    outputs = load(written).apply(variables(model, written, inputs), x=inputs["x"].numpy())
    for found, expected in zip(outputs, model(**inputs), strict=True):
        np.testing.assert_allclose(found, expected.detach(), atol=1e-5)


class Audio(torch.nn.Module):
    """A convolution over time, and a mask of the times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 2, 3, padding=1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * mask[:, None]


def test_the_axis_after_the_channels_is_a_length() -> None:
    made = port(Audio().eval(), {"x": torch.ones(2, 3, 8), "mask": torch.ones(2, 8)})
    assert made.free == (
        "x: batch (axis 0), length (axis 2)",
        "mask: batch (axis 0), length (axis 1)",
    )
