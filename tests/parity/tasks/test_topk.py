"""Approximate top-k: found in source and programs, not passed where it cannot be seen, compiled for a TPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.compiler.program import program_of_jax
from migrate.parity.tasks import topk
from migrate.parity.tasks.topk import Approximate, Bins, Recall

SCORES = jax.ShapeDtypeStruct((8, 32768), jnp.float32)
USE = Approximate(10, 32768, True, 0.9, "")


@jax.jit
def search(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.approx_max_k(scores, 10, recall_target=0.9)


def test_source(tmp_path: Path) -> None:
    file = tmp_path / "search.py"
    file.write_text(
        "import jax\nfrom jax import lax\nfrom mine import approx_min_k\n"
        "a = lax.approx_max_k(x, 5)\n"
        "b = jax.lax.approx_min_k(x, 5)  # migrate: ignore[XLA826]\n"
        "c = approx_min_k(x, 5), lax.top_k(x, 5)\n"
    )
    (found,) = check_file(file, Config(select=("XLA826",)))
    assert (found.path, found.line) == (file, 4)
    assert found.message.startswith("jax.lax.approx_max_k: exact on a CPU")


def test_a_program_is_looked_through_to_the_innermost_jaxpr() -> None:
    def function(scores: jax.Array) -> jax.Array:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return carry + search(carry)[0].sum(), None

        result, _ = lax.scan(step, scores, None, length=2)
        return lax.approx_min_k(result, 3)[0]

    inner, outer = topk.in_function(function, SCORES)
    line = search.__wrapped__.__code__.co_firstlineno + 2
    assert inner == Approximate(10, 32768, True, 0.9, f"{__file__}:{line}")
    assert (outer.k, outer.largest, outer.recall_target) == (3, False, 0.95)
    assert topk.in_function(lambda x: lax.top_k(x, 3)[0], SCORES) == ()


def test_a_cpu_is_exact_and_so_does_not_pass() -> None:
    recall = topk.measure(USE)
    assert (recall.value, recall.error, recall.approximate) == (1.0, 0.0, False)
    section = topk.topk_section([USE])
    assert not section.passed
    assert section.checks[0].b is None
    assert topk.NOT_HERE in section.checks[0].note
    assert topk.measure(Approximate(5, 100, False, 0.5, "")).value == 1.0


@pytest.mark.parametrize(("value", "passed"), [(0.95, True), (0.88, True), (0.7, False)])
def test_a_measured_recall_is_held_to_the_target(
    value: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topk, "measure", lambda *_: Recall(value, 0.01, "TPU v5e", True))
    section = topk.topk_section([USE])
    assert section.passed is passed
    assert section.checks[0].b == value


def test_a_program_without_any_passes_and_says_so() -> None:
    section = topk.topk_section([])
    assert section.passed
    assert section.notes == ("the program has no approximate top-k",)


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_tpu_compiler_makes_it_a_reduction_in_bins() -> None:
    found = topk.bins_of(program_of_jax(search, SCORES))
    assert found == (Bins("jit(search)/approx_top_k", 10, 256, 0.9),)
    assert topk.bins_of(program_of_jax(lambda x: lax.top_k(x, 10), SCORES)) == ()


def test_what_survives_the_bins() -> None:
    scores = np.array([[9.0, 1, 2, 8, 6, 7, 5, 3, 4]])
    np.testing.assert_array_equal(
        topk.kept(scores, 3, 3), [[0, 5, 4]]
    )  # the 8 shares the bin of the 9
    np.testing.assert_array_equal(topk.kept(scores[:, :7], 2, 4), [[0, 3]])
    random = np.random.default_rng(0).standard_normal((200, 32768))
    wanted = np.argsort(-random, -1)[:, :10]
    found = topk.kept(random, 10, 256)
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(wanted, found, strict=True)])
    # Each of the others shares the bin of one of 128 with it.
    assert abs(recall - np.mean([(127 / 128) ** rank for rank in range(10)])) < 0.01
    np.testing.assert_array_equal(found[:, 0], wanted[:, 0])
