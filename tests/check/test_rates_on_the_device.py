"""XLA209: a learning rate on the device, in whatever way the optimizer gets it."""

from __future__ import annotations

import pytest

from tests.check.test_left_behind import reported

SCRIPT = """
    import torch

    CONSTANT = True

    def optimizers(model, kind):
        rate = torch.tensor(0.1, device="cuda")
        {line}
    """


@pytest.mark.parametrize(
    "line",
    [
        "return torch.optim.AdamW(model.parameters(), **{'lr': rate})",
        "options = dict(lr=rate, foreach=True); return torch.optim.AdamW(model.parameters(), **options)",
        "return torch.optim.AdamW(model.parameters(), lr=rate, capturable=not CONSTANT)",
        "return torch.optim.AdamW(model.parameters(), rate)",
    ],
)
def test_a_rate_that_is_reported(line: str) -> None:
    assert reported(SCRIPT.format(line=line), "XLA209", "") == [7]


@pytest.mark.parametrize(
    "line",
    [
        "return torch.optim.AdamW(model.parameters(), lr=rate, capturable=CONSTANT)",
        "options = {'lr': rate, 'capturable': True}; return torch.optim.AdamW(model.parameters(), **options)",
        "return torch.optim.AdamW(*model, **{'lr': 0.1})",
    ],
)
def test_a_rate_that_the_optimizer_keeps(line: str) -> None:
    assert reported(SCRIPT.format(line=line), "XLA209", "") == []
