"""`migrate port --cache`: generation from a port equals the original's; bad input is refused."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks import port_zoo
from benchmarks.zoo_models import generating
from converters.graph import GraphError, port
from converters.graph.recording.caches import CachedForward
from converters.graph.writing.cache import Cache
from migrate.port.generation.original import ends_of
from migrate.port.generation.proof import compare_cached, worst_position
from migrate.port.generation.results import CachedCase
from migrate.port.generation.text import Ends, generate_text
from migrate.port.pipeline import PortOptions, port_model
from migrate.progress import no_progress

PROMPT = np.array([[5, 6, 7]])


@cache
def ported(name: str) -> tuple[Any, Any, Any, Path]:
    folder = Path(mkdtemp(prefix="generating-")) / name.lower().replace(" ", "")
    return (*generating.ported(name, folder), folder)


def llama() -> tuple[Any, Any, Any]:
    _, package, _, _ = ported("Llama")
    return package.generate, package.build(), package.load_params()


def require_same_tokens(name: str) -> None:
    model, package, _, _ = ported(name)
    for length in (5, 11):
        wanted, generated = generating.both(name, model, package, length, 50)
        assert generated.tolist() == wanted.tolist()
        assert len(set(wanted.flatten().tolist())) > 3, (
            "the tokens vary, so that equality says something"
        )
    assert package.generate.generate_padded._cache_size() <= 2  # one for each bucket


@pytest.mark.long
def test_greedy_tokens_of_llama_equal_those_of_torch() -> None:
    require_same_tokens("Llama")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in generating.MODELS if name != "Llama"])
def test_greedy_tokens_equal_those_of_torch(name: str) -> None:
    require_same_tokens(name)


def test_the_source_passes_the_cache_through_the_layers() -> None:
    _, _, result, folder = ported("Llama")
    source = result.modeling
    assert "for layer, layer_cache in zip(self.layers, cache, strict=True):" in source
    assert "new_cache.append(layer_cache)" in source
    assert source.count("class LlamaAttention") == 1
    assert "call_1" not in source
    written = (folder / "generate.py").read_text()
    assert "(batch_size, config.num_key_value_heads, length, config.head_dim)" in written
    assert "range(config.num_hidden_layers)" in written


@pytest.mark.long
def test_without_cache_the_source_stays_as_it_was() -> None:
    model = generating.built("Llama")
    plain = port(model, generating.recorded_inputs("Llama"))
    assert "decode" not in plain.modeling
    assert plain.cache is None
    _, _, cached, _ = ported("Llama")
    assert plain.config == cached.config


def test_prompts_of_one_bucket_are_compiled_once() -> None:
    generate, model, params = llama()
    generate.generate_padded.clear_cache()
    for length in (1, 3, 8, 9, 16):
        generate.generate(model, params, np.full((2, length), 7), max_new_tokens=3)
    assert generate.generate_padded._cache_size() == 2
    assert [generate.bucket_of(length) for length in (1, 8, 9, 16, 17)] == [8, 8, 16, 16, 32]


@pytest.mark.long
def test_tokens_behind_the_end_are_padding() -> None:
    generate, model, params = llama()
    tokens = np.asarray(generate.generate(model, params, PROMPT, max_new_tokens=12))[0]
    end = int(tokens[4])
    first = tokens.tolist().index(end)
    ended = generate.generate(
        model, params, PROMPT, max_new_tokens=12, eos_token_id=end, pad_token_id=2
    )
    assert np.asarray(ended)[0].tolist() == [*tokens[: first + 1], *[2] * (11 - first)]


@pytest.mark.parametrize("options", [{}, {"top_k": 7}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.7}])
def test_scores_equal_those_of_transformers(options: dict[str, Any]) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    generate, _, _ = llama()
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)) * 3
    wanted = TemperatureLogitsWarper(0.7)(None, logits)
    if "top_k" in options:
        wanted = TopKLogitsWarper(options["top_k"])(None, wanted)
    if "top_p" in options:
        wanted = TopPLogitsWarper(options["top_p"])(None, wanted)
    scores = generate.scores_of(jnp.asarray(logits.numpy()), 0.7, **options)
    assert np.isneginf(scores).tolist() == np.isneginf(wanted.numpy()).tolist()
    np.testing.assert_allclose(np.asarray(scores), wanted.numpy(), rtol=1e-6)


def test_draws_have_the_distribution_of_torch() -> None:
    generate, model, params = llama()
    original, _, _, _ = ported("Llama")
    with torch.no_grad():
        logits = original(torch.from_numpy(PROMPT)).logits[0, -1] / 0.8
    probabilities = torch.softmax(logits, -1).numpy()
    count = 5000
    drawn = generate.generate(
        model,
        params,
        np.repeat(PROMPT, count, axis=0),
        max_new_tokens=1,
        temperature=0.8,
        key=jax.random.key(1),
    )
    observed = np.bincount(np.asarray(drawn)[:, 0], minlength=len(probabilities))
    likely = probabilities * count >= 5
    wanted = np.append(probabilities[likely], probabilities[~likely].sum()) * count
    observed = np.append(observed[likely], observed[~likely].sum())
    degrees = len(wanted) - 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    # The 99.9th percentile of chi-square, by Wilson and Hilferty.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert degrees > 5
    assert statistic < limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_length": 10}, "cache_length=10: the prompt of 3 tokens is padded to 8"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: pass at least 1"),
        ({"temperature": 0.5}, "pass a key"),
        ({"temperature": 0.0, "key": jax.random.key(0)}, "temperature=0.0: pass a number above 0"),
        ({"top_k": 0, "key": jax.random.key(0)}, "top_k=0: pass at least 1"),
        ({"top_p": 1.5, "key": jax.random.key(0)}, "top_p=1.5: pass a number above 0"),
        ({"attention_mask": np.array([[1, 1, 0]])}, "pad on the left"),
        (
            {"attention_mask": np.array([[1, 1]])},
            r"attention_mask of shape \(1, 2\): pass the shape of input_ids, \(1, 3\)",
        ),
        ({"attention_mask": np.ones((2, 3))}, r"attention_mask of shape \(2, 3\)"),
        ({"attention_mask": np.ones(3)}, r"attention_mask of shape \(3,\)"),
    ],
)
def test_bad_options_are_refused_before_anything_is_compiled(
    options: dict[str, Any], message: str
) -> None:
    generate, model, params = llama()
    generate.generate_padded.clear_cache()
    with pytest.raises(ValueError, match=message):
        generate.generate(model, params, PROMPT, **options)
    assert generate.generate_padded._cache_size() == 0


@pytest.mark.parametrize("tokens", [5, [5, 6], [[]], [[[5, 6]]]])
def test_tokens_without_rows_or_length_are_refused(tokens: Any) -> None:
    generate, model, params = llama()
    with pytest.raises(ValueError, match=r"input_ids of shape \(.*\): pass \(batch, length\)"):
        generate.generate(model, params, tokens)


def test_generation_does_the_operations_of_jax_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(port_zoo.__file__).parent))
    hand = importlib.import_module("benchmarks.port_generate")
    monkeypatch.setattr(hand, "SIZES", generating.MODELS["Llama"][2])
    generate, model, params = llama()
    padded, lowered = generate.generate_padded, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        lowered.append(padded.lower(*args, **kwargs))
        return padded(*args, **kwargs)

    monkeypatch.setattr(generate, "generate_padded", watched)
    prompt = np.arange(24).reshape(3, 8)
    tokens = generate.generate(model, params, prompt, np.ones_like(prompt), max_new_tokens=5)
    lowered.append(hand.by_hand.lower(params, prompt, np.ones_like(prompt), 5))
    ours, theirs = (each.compile() for each in lowered)
    assert tokens.tolist() == theirs(params, prompt, np.ones_like(prompt)).tolist()
    assert ours.cost_analysis()["flops"] <= 1.02 * theirs.cost_analysis()["flops"]


SOURCE = np.full((2, 5), 7)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            SOURCE,
            {"attention_mask": np.ones((1, 5))},
            r"attention_mask of shape \(1, 5\): pass the shape of input_ids, \(2, 5\)",
        ),
        (SOURCE, {"attention_mask": np.ones((2, 4))}, r"attention_mask of shape \(2, 4\)"),
        (SOURCE, {"attention_mask": np.ones(5)}, r"attention_mask of shape \(5,\)"),
        (SOURCE[0], {}, r"input_ids of shape \(5,\): pass \(batch, length\)"),
        (SOURCE[:, :0], {}, r"input_ids of shape \(2, 0\): pass \(batch, length\)"),
        (
            SOURCE,
            {"decoder_input_ids": np.ones((3, 1))},
            "decoder_input_ids have a batch of 3, input_ids of 2: pass the same batch",
        ),
        (
            SOURCE,
            {"decoder_input_ids": np.ones((2, 3)), "decoder_attention_mask": np.ones((2, 2))},
            r"decoder_attention_mask of shape \(2, 2\): pass the shape of decoder_input_ids",
        ),
        (
            SOURCE,
            {"decoder_input_ids": np.ones((2, 2)), "decoder_attention_mask": [[1, 1], [1, 0]]},
            "decoder_attention_mask: a prompt ends with padding; pad on the left",
        ),
    ],
)
def test_arguments_of_an_encoder_that_do_not_go_together_are_refused(
    source: Any, options: dict[str, Any], message: str
) -> None:
    names = written_alone(Ends(start=0), T5)
    with pytest.raises(ValueError, match=message):
        names["generate"](SimpleNamespace(config=None), {}, source, **options)
    assert names["encode"]._cache_size() == 0


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (
            np.ones((10, 60)),
            {},
            r"input_features of shape \(10, 60\): pass 3 axes, the batch first",
        ),
        (np.ones((0, 10, 60)), {}, r"input_features of shape \(0, 10, 60\)"),
        (
            np.ones((2, 10, 60)),
            {"decoder_input_ids": [[3]]},
            "decoder_input_ids have a batch of 1, input_features of 2: pass the same batch",
        ),
    ],
)
def test_features_and_tokens_of_different_batches_are_refused(
    features: Any, options: dict[str, Any], message: str
) -> None:
    names = written_alone(Ends(start=0), WHISPER)
    with pytest.raises(ValueError, match=message):
        names["generate"](SimpleNamespace(config=None), {}, features, **options)
    assert names["encode"]._cache_size() == 0


def test_cached_logits_are_proven_and_a_fault_is_found(tmp_path: Path) -> None:
    model, _, result, folder = ported("Llama")
    example = generating.recorded_inputs("Llama")
    params = folder / "params.safetensors"
    case = compare_cached(model, example, result, folder, params, tmp_path / "a", 300)
    assert case.matches, case.verdict
    source = folder / "modeling.py"
    right = source.read_text()
    try:
        source.write_text(
            right.replace("key_states, index, axis=2", "key_states, index + 1, axis=2")
        )
        wrong = compare_cached(model, example, result, folder, params, tmp_path / "b", 300)
    finally:
        source.write_text(right)
    assert not wrong.matches
    assert "differs" in wrong.verdict


def test_a_case_that_did_not_run_does_not_match() -> None:
    case = CachedCase("cached logits", "", error="ValueError: no")
    assert not case.matches
    assert case.verdict == "could not be compared: ValueError: no"


@pytest.mark.parametrize("at", [0, 1, 3])
def test_logits_that_are_nan_at_one_position_do_not_match(at: int) -> None:
    wanted = np.random.default_rng(0).standard_normal((2, 4, 5)).astype(np.float32)
    logits = wanted.copy()
    logits[1, at] = np.nan
    case = CachedCase("cached logits", "", *worst_position(wanted, logits, np.ones((2, 4))))
    assert not case.matches
    assert case.position == at
    assert f"differs: nan at token {at}" in case.verdict


@pytest.mark.parametrize(("off", "distance"), [(0.0, 0.0), (1.0, 1.0)])
def test_logits_that_are_all_zero_are_compared_absolutely(off: float, distance: float) -> None:
    wanted = np.zeros((1, 3, 5), np.float32)
    logits = wanted.copy()
    logits[0, 2, 1] = off
    case = CachedCase("cached logits", "", *worst_position(wanted, logits, np.ones((1, 3))))
    assert case.distance == distance
    assert case.matches is (not off)


def test_settings_of_generation_that_are_missing_are_noted() -> None:
    model = generating.built("Llama")
    model.generation_config.num_beams = 4
    model.generation_config.suppress_tokens = [3]
    model.generation_config.eos_token_id = [1, 2]
    ends, notes = ends_of(model, False)
    assert notes == ["generate.py lacks a setting of the original's generation: num_beams=4"]
    assert (ends.eos, ends.suppressed) == ((1, 2), (3,))


@pytest.mark.parametrize(("first", "tokens"), [((3,), [4, 3]), ((), [3, 3])])
def test_suppressed_tokens_are_not_generated(first: tuple[int, ...], tokens: list[int]) -> None:
    names = written_alone(Ends((1,), 0, None, (2,), first))
    logits = jnp.array([[0.0, 1.0, 9.0, 8.0, 7.0]])
    assert [int(names["next_token"](logits, None, step, {})[0]) for step in (0, 1)] == tokens


def test_more_tokens_than_positions_are_refused() -> None:
    names = written_alone(Ends())
    with pytest.raises(ValueError, match="3 tokens and 8 new ones: the model has 10 positions"):
        names["require_length"](SimpleNamespace(size=10), 8, 3, 8, None)


LLAMA = CachedForward("input_ids", "attention_mask", "position_ids", (), True)
T5 = CachedForward(
    "decoder_input_ids",
    "decoder_attention_mask",
    "",
    (),
    True,
    encoder=("input_ids",),
    encoder_axes=2,
    encoder_mask="attention_mask",
)
WHISPER = replace(T5, encoder=("input_features",), encoder_axes=3, encoder_mask="")


def written_alone(ends: Ends, recorded: CachedForward = LLAMA) -> dict[str, Any]:
    """The names of a `generate.py` whose model is not there."""
    written_cache = Cache(recorded, ({"key": ("batch_size", "length")},), "1", "config.size")
    source = generate_text("Model", "Config", written_cache, ends)
    source = source.replace("from .config import Config", "class Config: pass")
    names: dict[str, Any] = {"__name__": "generated"}
    exec(source.replace("from .modeling import Model", "class Model: pass"), names)
    return names


def test_a_model_without_a_cache_is_refused() -> None:
    with pytest.raises(GraphError, match=r"--cache: Linear has no cached forward"):
        port(torch.nn.Linear(2, 3), {"input": torch.ones(2, 2)}, cache=True)


def test_cache_and_methods_are_refused_together(tmp_path: Path) -> None:
    from migrate.port.errors import PortError

    options = PortOptions(tmp_path, cache=True, methods=("encode",))
    with pytest.raises(PortError, match="--cache and --methods do not go together"):
        port_model("torch.nn:Identity", options, "", no_progress)
    assert not list(tmp_path.iterdir())
