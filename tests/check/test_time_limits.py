"""XLA884: a time limit ends a loop over tensors, and no other loop."""

from __future__ import annotations

import pytest

from tests.check.test_left_behind import marked, reported

LOOP = """
    import time
    import torch

    def infer(batches, limit):
        start, results = time.time(), []
        for x in batches:
            {computes}
            if time.time() - start > limit:{mark}
                {leaves}
        return results
    """
NO_TENSORS = (
    "results.append(torch.Generator())",
    "results.append(torch.get_rng_state())",
    "results.append(torch.device(x))",
    "results.append(torch.finfo(x))",
)
NO_WAY_OUT = (
    "results.append(lambda: x)",
    "def last(): return x",
    "for y in x: break",
)


def script(computes: str, leaves: str, mark: str) -> str:
    return LOOP.format(computes=computes, leaves=leaves, mark=mark)


@pytest.mark.parametrize("leaves", ["break", "return x", "for y in x: return y"])
@pytest.mark.parametrize("computes", ["x = torch.sin(x)", "print(torch.allclose(x, x + 1))"])
def test_a_loop_that_computes_and_is_left(computes: str, leaves: str) -> None:
    text = script(computes, leaves, "  # here")
    assert reported(text, "XLA884", "") == marked(text)


@pytest.mark.parametrize("computes", NO_TENSORS)
def test_a_loop_that_computes_no_tensor(computes: str) -> None:
    assert reported(script(computes, "break", ""), "XLA884", "") == []


@pytest.mark.parametrize("leaves", NO_WAY_OUT)
def test_a_loop_that_is_not_left(leaves: str) -> None:
    assert reported(script("x = torch.sin(x)", leaves, ""), "XLA884", "") == []
