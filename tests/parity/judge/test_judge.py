"""Every layer's own error is told from what came before it; clean sides raise no alarm."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from migrate.parity.align.align import align
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.results import LayerVerdict
from migrate.parity.judge.judge import Judged, LayerJudgement, judge, judgement
from migrate.parity.judge.measure import own_errors
from migrate.parity.judge.profiles import Profile, find_profile
from tests.parity.numpy_attention import INPUTS, WEIGHTS, Faults, flax_like, names, torch_like
from tests.parity.numpy_model import Array, Model, Run, capture

F32 = find_profile("f32-highest")
PARTING = (LayerVerdict.A_PARTS, LayerVerdict.B_PARTS, LayerVerdict.BOTH_PART)
MANY = [np.random.default_rng(seed).standard_normal((3, 5, 8)) for seed in range(8)]


def judged(folder: Path, truth: Dump, model: Model, weights: dict[str, str] | None) -> Judged:
    """A side in float32, as it runs and on the truth's inputs."""
    accumulated = capture(folder / "run", model, WEIGHTS, MANY)
    alignment = align(truth, accumulated, weights)
    local = capture(folder / "local", model, WEIGHTS, MANY, forced=(truth, alignment))
    return Judged(accumulated, local, alignment)


@functools.cache
def base() -> tuple[Dump, Judged]:
    """The truth, and A in float32, which is also the emulation; the same in all tests."""
    truth = capture(_FOLDER / "t", torch_like, WEIGHTS, MANY, "float64")
    return truth, judged(_FOLDER / "a", truth, torch_like, None)


@pytest.fixture(scope="module", autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder for `base`."""
    global _FOLDER
    _FOLDER = tmp_path_factory.mktemp("base")


_FOLDER = Path()


def faulty(folder: Path, faults: Faults | None) -> Judged:
    return judged(folder / "b", base()[0], functools.partial(flax_like, faults=faults), names())


def compared(folder: Path, faults: Faults | None = None, profile: Profile = F32) -> LayerJudgement:
    truth, a = base()
    return judgement(truth, a, faulty(folder, faults), a, profile)


def test_a_clean_pair_matches(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.first is None
    assert not found.breaches
    assert not found.notes
    assert {layer.verdict for layer in found.layers} == {LayerVerdict.MATCH, LayerVerdict.ALONE}
    dense = next(layer for layer in found.layers if layer.name == "block.1.up")
    assert dense.b is not None
    assert dense.b.local is not None
    assert dense.b.accumulated is not None
    assert 1e-8 < dense.b.local.relative_l2 < 3e-7
    assert dense.b.accumulated.relative_l2 < dense.accumulated_limit
    assert dense.b.ratio is not None
    assert 0.5 < dense.b.ratio.value < 2
    assert dense.depth == 16
    assert len(dense.b.local.per_input) == len(MANY)


@pytest.mark.parametrize(
    ("fault", "layer", "what"),
    [
        ("eps", "block.1.norm", "output"),
        ("residual", "block.1", "output"),
        # Flax computes it in passing: seen in what the next dense layer is given.
        ("gelu", "block.1.act", "output"),
        ("scale", "block.1.attention", "argument"),
    ],
)
def test_a_fault_is_found_where_it_is(tmp_path: Path, fault: str, layer: str, what: str) -> None:
    found = compared(tmp_path, {1: fault})
    assert found.first is not None
    assert (found.first.name, found.first.verdict) == (layer, LayerVerdict.B_PARTS)
    assert found.breaches[0].place.what == what
    parting = [one.name for one in found.layers if one.verdict in PARTING]
    assert parting == [layer]


def test_what_comes_after_a_fault_is_carried(tmp_path: Path) -> None:
    found = compared(tmp_path, {0: "residual"})
    verdicts = {layer.name: layer.verdict for layer in found.layers}
    assert verdicts["block.0"] is LayerVerdict.B_PARTS
    assert verdicts["block.1.norm"] is LayerVerdict.CARRIED
    assert verdicts["block.0.norm"] is LayerVerdict.MATCH


def test_two_faults_are_both_found_and_the_first_is_first(tmp_path: Path) -> None:
    truth, a_side = base()
    b_side = faulty(tmp_path, {0: "gelu", 2: "eps"})
    found = judgement(truth, a_side, b_side, a_side, F32)
    assert [breach.layer for breach in found.breaches] == ["block.0.act", "block.2.norm"]
    places = [(breach.layer, breach.place) for breach in found.foremost]
    histograms = own_errors(truth, a_side, b_side, places, {})
    assert [one[0] for one in histograms] == ["block.0.act", "block.2.norm"]
    _, edges, a, b = histograms[1]
    assert sum(a) == sum(b) == 8 * 3 * 5 * 8
    assert edges[a.index(max(a))] < -6.5 < -5.5 < edges[b.index(max(b))]


def test_a_layer_that_only_the_truth_has_is_measured_at_its_consumer(tmp_path: Path) -> None:
    found = {layer.name: layer for layer in compared(tmp_path).layers}
    act = found["block.0.act"].b
    assert act is not None
    assert act.name == ""
    assert act.local is not None
    assert act.local.relative_l2 < 3e-7


def test_without_a_truth_b_is_measured_against_a(tmp_path: Path) -> None:
    a = capture(tmp_path / "a", torch_like, WEIGHTS, MANY)
    for name, fault, wrong in (("clean", {}, False), ("off", {1: "residual"}, True)):
        b = capture(tmp_path / name, functools.partial(flax_like, faults=fault), WEIGHTS, MANY)
        layers = judge(a, None, Judged(b, None, align(a, b, names())), None, F32)
        assert all(layer.a is None for layer in layers)
        unknown = [layer.name for layer in layers if layer.verdict is LayerVerdict.UNFED]
        assert bool(unknown) == wrong
        assert not wrong or unknown[0] == "block.1"
        assert layers[0].local_limit == 2e-6


Single = Callable[[Array], Array]


def single(
    folder: Path,
    truth: Single,
    mine: Single,
    *,
    kind: str = "Custom",
    emulated: Single | None = None,
    inputs: list[Array] | None = None,
    profile: Profile = F32,
    padding: dict[int, Array] | None = None,
) -> LayerJudgement:
    """A model of one layer; E computes what the truth does, in float32, if nothing else is said."""

    def model(function: Single) -> Model:
        return lambda run, x: run.layer("one", kind, function, x)

    def side(name: str, function: Single) -> Judged:
        dump = capture(folder / name, model(function), {}, given)
        alignment = align(dump_t, dump, {})
        local = capture(
            folder / f"{name}-l", model(function), {}, given, forced=(dump_t, alignment)
        )
        return Judged(dump, local, alignment)

    given = MANY if inputs is None else inputs
    dump_t = capture(folder / "t", model(truth), {}, given, "float64")
    e = side("e", emulated or truth)
    return judgement(dump_t, e, side("b", mine), e, profile, padding=padding)


def verdict(found: LayerJudgement) -> LayerVerdict:
    return next(layer.verdict for layer in found.layers if layer.name == "one")


def test_cancellation_that_the_emulation_has_too_is_no_alarm(tmp_path: Path) -> None:
    def cancels(x: Array) -> Array:
        return (x + 1000) - 1000 + x.mean() * 1e-3

    found = single(tmp_path, cancels, lambda x: (x + 1000) - 1000 + x.mean() * x.dtype.type(1e-3))
    layer = next(layer for layer in found.layers if layer.name == "one")
    assert layer.b is not None
    assert layer.b.local is not None
    assert layer.b.local.relative_l2 > 10 * layer.local_limit
    assert layer.verdict is LayerVerdict.MATCH


def test_an_exact_operation_may_be_rounded_though_the_emulation_is_not(tmp_path: Path) -> None:
    whole = [
        np.random.default_rng(seed).integers(1, 1 << 20, (4, 9)).astype(float) for seed in range(8)
    ]
    once = np.float32(1 / 3)
    found = single(
        tmp_path, lambda x: x[::-1], lambda x: x[::-1] / once * once, kind="Flatten", inputs=whole
    )
    assert verdict(found) is LayerVerdict.MATCH


def test_outputs_of_zeros(tmp_path: Path) -> None:
    assert (
        verdict(single(tmp_path / "same", lambda x: x * 0, lambda x: x * 0)) is LayerVerdict.MATCH
    )
    found = single(tmp_path / "noise", lambda x: x * 0, lambda x: x * x.dtype.type(1e-3))
    assert verdict(found) is LayerVerdict.B_PARTS


def test_nearly_zero_outputs_are_judged_by_the_emulation(tmp_path: Path) -> None:
    """x - mean of a constant: float64 gives 1e-17, float32 1e-8, both are right."""
    constant = [np.full((3, 7), 0.1 * (seed + 1)) for seed in range(8)]

    def centered(x: Array) -> Array:
        return x - x.sum(-1, keepdims=True) / 7

    found = single(
        tmp_path, centered, lambda x: x - x[:, ::-1].sum(-1, keepdims=True) / 7, inputs=constant
    )
    assert verdict(found) is LayerVerdict.MATCH


def masking(value: float, keep: float = 0.0) -> Single:
    def mask(x: Array) -> Array:
        causal = np.triu(np.ones(x.shape[-2:], bool), 1)
        return np.where(causal, x.dtype.type(value), keep * x)

    return mask


@pytest.mark.parametrize("value", [-1e9, -1e10, float(np.finfo(np.float32).min), -math.inf])
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_masks_of_other_words_are_the_same(tmp_path: Path, value: float, keep: float) -> None:
    found = single(
        tmp_path, masking(-1e30, keep), masking(value, keep), emulated=masking(-1e30, keep)
    )
    assert verdict(found) is LayerVerdict.MATCH
    assert not found.notes


def test_an_old_mask_of_minus_ten_thousand(tmp_path: Path) -> None:
    assert verdict(single(tmp_path, masking(-1e4), masking(-1e9))) is LayerVerdict.MATCH


def test_a_mask_the_other_way_round_is_found(tmp_path: Path) -> None:
    def wrong(x: Array) -> Array:
        return masking(-1e9, 1.0)(x.swapaxes(-1, -2)).swapaxes(-1, -2)

    assert verdict(single(tmp_path, masking(-1e9, 1.0), wrong)) is LayerVerdict.B_PARTS


def test_nan_is_found(tmp_path: Path) -> None:
    found = single(tmp_path, lambda x: x, lambda x: np.where(x > 2, np.nan, x))
    assert verdict(found) is LayerVerdict.B_PARTS
    assert found.breaches[0].finding.errors.not_finite > 0


def test_nan_on_both_sides_is_no_match(tmp_path: Path) -> None:
    def bad(x: Array) -> Array:
        return np.where(x > 2, np.nan, x)

    found = single(tmp_path, bad, bad)
    assert verdict(found) is LayerVerdict.UNDEFINED
    assert any("the truth itself has NaN" in note for note in found.notes)


def test_overflow_that_the_emulation_has_too_is_no_alarm(tmp_path: Path) -> None:
    def large(x: Array) -> Array:
        with np.errstate(over="ignore"):
            return x * x.dtype.type(1e30) * x.dtype.type(1e9)

    assert verdict(single(tmp_path, large, large)) is LayerVerdict.MATCH


def test_padded_positions_do_not_count(tmp_path: Path) -> None:
    kept = np.arange(5)[None] < np.array([[5], [3], [2]])

    def garbage(x: Array) -> Array:
        return np.where(kept[..., None], x, 7)

    assert verdict(single(tmp_path / "1", lambda x: x, garbage)) is LayerVerdict.B_PARTS
    found = single(tmp_path / "2", lambda x: x, garbage, padding=dict.fromkeys(range(8), kept))
    assert verdict(found) is LayerVerdict.MATCH


def test_one_wrong_element_among_many_is_found(tmp_path: Path) -> None:
    large = [np.random.default_rng(seed).standard_normal((40, 1500)) for seed in range(2)]

    def wrong(x: Array) -> Array:
        y = x * 3
        y[7, 11] *= 1.0001
        return y

    found = single(tmp_path, lambda x: x * 3, wrong, inputs=large)
    layer = next(layer for layer in found.layers if layer.name == "one")
    assert layer.b is not None
    assert layer.b.local is not None
    assert layer.b.local.relative_l2 < layer.local_limit
    assert layer.verdict is LayerVerdict.B_PARTS


def test_an_outlier_of_the_truth_is_no_wrong_element(tmp_path: Path) -> None:
    """Massive activations: their rounding alone is large beside the RMS of all."""
    inputs = [np.random.default_rng(seed).standard_normal((40, 1500)) for seed in range(2)]
    for x in inputs:
        x[3, 5] = 50000.123
    found = single(tmp_path, lambda x: x * 3, lambda x: x + x + x, inputs=inputs)
    assert verdict(found) is LayerVerdict.MATCH


def test_integers_are_equal_or_near_ties(tmp_path: Path) -> None:
    def largest(x: Array) -> Array:
        return x.argmax(-1)

    def shifted(x: Array) -> Array:
        return (x.argmax(-1) + 1) % x.shape[-1]

    def one_tie(x: Array) -> Array:
        y = x.argmax(-1)
        y.reshape(-1)[0] ^= 1
        return y

    large = [np.random.default_rng(seed).standard_normal((20, 30, 4)) for seed in range(2)]
    assert verdict(single(tmp_path / "1", largest, largest, inputs=large)) is LayerVerdict.MATCH
    assert verdict(single(tmp_path / "2", largest, one_tie, inputs=large)) is LayerVerdict.MATCH
    assert verdict(single(tmp_path / "3", largest, shifted, inputs=large)) is LayerVerdict.B_PARTS


def test_masks_and_positions_are_equal_or_wrong(tmp_path: Path) -> None:
    """A causal mask that is off by one differs in few of many elements, and is no near tie."""
    causal = np.tril(np.ones((300, 300), bool))
    wrong = np.tril(np.ones((300, 300), bool), 1)

    def model(mask: Array) -> Model:
        def run(run: Run, x: Array) -> Array:
            return run.layer("one", "Custom", lambda x, mask: x * mask.sum(), x, mask)

        return run

    truth = capture(tmp_path / "t", model(causal), {}, MANY, "float64")
    found = {}
    for name, mask in (("right", causal), ("wrong", wrong)):
        run = capture(tmp_path / name, model(mask), {}, MANY)
        alignment = align(truth, run)
        local = capture(tmp_path / f"{name}-l", model(mask), {}, MANY, forced=(truth, alignment))
        found[name] = judgement(truth, None, Judged(run, local, alignment), None, F32)
    assert found["right"].first is None
    first = found["wrong"].first
    assert first is not None
    # The model makes the mask, the layer only takes it.
    assert first.name == ""
    assert found["wrong"].breaches[0].place.layer == "one"


def rounded(x: Array) -> Array:
    """Through bfloat16."""
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def one_pass(x: Array) -> Array:
    """A product whose factors are rounded, but in the truth."""
    factor = np.random.default_rng(3).standard_normal((8, 8)).astype(x.dtype)
    return x @ factor if x.dtype == np.float64 else rounded(x) @ rounded(factor)


def test_one_pass_matches_in_its_profile_only(tmp_path: Path) -> None:
    profile = find_profile("tpu-default")
    found = single(tmp_path / "1", one_pass, one_pass, kind="Linear", profile=profile)
    assert verdict(found) is LayerVerdict.MATCH

    def exact(x: Array) -> Array:
        return x @ np.random.default_rng(3).standard_normal((8, 8)).astype(x.dtype)

    assert verdict(single(tmp_path / "2", exact, one_pass, kind="Linear")) is LayerVerdict.B_PARTS


def test_a_container_without_products_has_the_limit_of_float32(tmp_path: Path) -> None:
    """A residual that is scaled by 1.001 is wrong under a TPU's default precision too."""
    profile = find_profile("tpu-default")
    found = single(
        tmp_path,
        lambda x: x + 1,
        lambda x: x * x.dtype.type(1.001) + 1,
        kind="Block",
        profile=profile,
    )
    assert verdict(found) is LayerVerdict.B_PARTS


def test_strict_minds_what_the_emulation_does_too(tmp_path: Path) -> None:
    def cancels(x: Array) -> Array:
        return (x + 1000) - 1000

    strict = find_profile("f32-highest", strict=True)
    found = single(tmp_path / "1", cancels, cancels, profile=strict)
    assert verdict(found) is LayerVerdict.BOTH_PART
    assert (
        verdict(single(tmp_path / "2", lambda x: x * 3, lambda x: x * 3, profile=strict))
        is LayerVerdict.MATCH
    )


def test_strict_minds_units_in_the_last_place_that_the_emulation_keeps(tmp_path: Path) -> None:
    strict = find_profile("f32-highest", strict=True)

    def off(x: Array) -> Array:
        y = np.tanh(x)
        return y + 20 * np.spacing(y) * (np.abs(x) < 0.05)

    found = single(tmp_path, np.tanh, off, kind="Tanh", profile=strict)
    assert verdict(found) is LayerVerdict.B_PARTS
    assert found.breaches[0].finding.why == "ulps"
    easy = single(tmp_path / "easy", np.tanh, off, kind="Tanh")
    assert verdict(easy) is LayerVerdict.MATCH


def test_a_layer_that_could_not_be_fed_is_not_blamed(tmp_path: Path) -> None:
    def model(wrong: bool) -> Model:
        def run(run: Run, x: Array) -> Array:
            x = run.layer("first", "Custom", lambda x: x * (2 if wrong else 1), x)
            return run.layer("second", "Custom", lambda x: x + 1, x)

        return run

    truth = capture(tmp_path / "t", model(False), {}, MANY, "float64")
    mine = capture(tmp_path / "m", model(True), {}, MANY)
    output = (TensorPair("", ""),)
    alignment = LayerAlignment(
        (Pair("second", "second", "order", outputs=output),), output, ("first",), ("first",)
    )
    local = capture(tmp_path / "l", model(True), {}, MANY, forced=(truth, alignment))
    layers = judge(truth, None, Judged(mine, local, alignment), None, F32)
    assert [one.verdict for one in layers if one.name == "second"] == [LayerVerdict.UNFED]
    assert [one.verdict for one in layers if one.name == "first"] == [LayerVerdict.ALONE] * 2


def test_inputs_of_other_lengths(tmp_path: Path) -> None:
    """The way a tensor lies was found on the first input; a longer one lies so too."""
    lengths = [
        np.random.default_rng(n).standard_normal((2, n, 8)) for n in (5, 7, 4, 6, 5, 9, 3, 8)
    ]
    truth = capture(tmp_path / "t", torch_like, WEIGHTS, lengths, "float64")
    mine = capture(tmp_path / "m", flax_like, WEIGHTS, lengths)
    alignment = align(truth, mine, names())
    layers = judge(truth, None, Judged(mine, None, alignment), None, F32)
    query = next(layer for layer in layers if layer.name == "block.0.q")
    assert query.b is not None
    assert query.b.accumulated is not None
    assert len(query.b.accumulated.per_input) == 8
    assert query.verdict is LayerVerdict.MATCH


def test_a_side_whose_shape_does_not_fit_on_an_input_is_told(tmp_path: Path) -> None:
    truth = capture(tmp_path / "t", torch_like, WEIGHTS, INPUTS, "float64")
    longer = [INPUTS[0], np.concatenate([INPUTS[1]] * 2, 1)]
    mine = capture(tmp_path / "m", torch_like, WEIGHTS, longer)
    found = judgement(truth, None, Judged(mine, None, align(truth, mine)), None, F32)
    assert any("does not fit" in note and "input 1" in note for note in found.notes)


def test_the_dtype_of_a_reduced_precision_is_the_tensors(tmp_path: Path) -> None:
    assert dataclasses.replace(F32, name="x").floor == pytest.approx(0.4 * 2**-24)
    assert find_profile("bf16").floor == pytest.approx(0.4 * 2**-8)
