"""timm-loader: loaders whose prefetcher erases on the device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import timm.data
    import torch
    from timm.data import PrefetchLoader, create_loader
    from torch.utils.data import DataLoader

    PROB = 0.0
    SETTINGS = dict(re_prob=0.0, use_prefetcher=True)
    ERASING = {{"re_prob": 0.3, "is_training": True}}


    def load(dataset, args, options, device):
        return {made}
"""


def messages(made: str) -> list[str]:
    text = dedent(SCRIPT.format(made=made)).lstrip()
    result = rewrite_source(parse(text.encode(), Path("train.py")), options=RewriteOptions())
    return [finding.message for finding in result.findings if finding.rule == "timm-loader"]


@pytest.mark.parametrize(
    "made",
    [
        "create_loader(dataset, 224, 8, is_training=True, re_prob=args.p, device=device)",
        "create_loader(dataset, 224, 8, True, re_prob=0.25, device=device)",
        "create_loader(dataset, 224, 8, True, re_prob=0.25, use_prefetcher=args.fetch)",
        "create_loader(dataset, 224, 8, is_training=args.train, re_prob=0.25, device=device)",
        "timm.data.create_loader(dataset, 224, 8, is_training=True, re_prob=args.p)",
        "create_loader(dataset, 224, 8, True, False, 0.2, device=device)",
        "create_loader(dataset, 224, 8, device=device, **ERASING)",
        "create_loader(dataset, 224, 8, is_training=True, device=device, **options)",
    ],
)
def test_erasing_on_the_device(made: str) -> None:
    (message,) = messages(made)
    assert "compilation" in message
    assert "use_prefetcher=False" in message
    position = message.find("device=torch.device('xla')")
    assert position == -1 or message.index("use_prefetcher=False") < position


@pytest.mark.parametrize(
    "made",
    [
        "create_loader(dataset, 224, 8, is_training=True, device=device)",
        "create_loader(dataset, 224, 8, is_training=True, re_prob=PROB, device=device)",
        "create_loader(dataset, 224, 8, is_training=True, device=device, **SETTINGS)",
        "create_loader(dataset, 224, 8, re_prob=0.5, device=device)",
        "create_loader(dataset, 224, 8, False, re_prob=0.5, device=device)",
        "create_loader(dataset, 224, 8, is_training=True, no_aug=True, re_prob=0.5, device=device)",
        "create_loader(dataset, 224, 8, is_training=True, use_prefetcher=False, re_prob=0.5)",
        "create_loader(dataset, 224, 8, True, re_prob=0.5, device=torch.device('cpu'))",
        "PrefetchLoader(DataLoader(dataset), device=device)",
        "PrefetchLoader(DataLoader(dataset), device=device, re_prob=0.0)",
    ],
)
def test_nothing_is_erased(made: str) -> None:
    assert messages(made) == []


def test_a_prefetcher_by_hand_has_no_switch() -> None:
    (message,) = messages("PrefetchLoader(DataLoader(dataset), device=device, re_prob=args.p)")
    assert "transform of the dataset" in message
    assert "use_prefetcher" not in message


def test_batches_that_go_to_cuda_and_are_not_erased() -> None:
    (message,) = messages("create_loader(dataset, 224, 8)")
    assert message.startswith("timm's prefetcher sends the batches to CUDA")
    assert "compilation" not in message
