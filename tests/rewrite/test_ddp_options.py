"""Arguments of DistributedDataParallel that dictionaries pass."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(args, model, given):
    device = torch.device("cuda")
    model = model.to(device)
"""


def rewrite(body: str, style: Literal["native", "portable"] = "native") -> tuple[str, list[str]]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    script = HEAD + lines + "    return model\n"
    done = rewrite_source(
        parse(script.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    return done.data.decode(), [note.message for note in done.findings if note.rule == "ddp"]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "body",
    [
        'ddp_args = {}\nif args.static:\n    ddp_args["static_graph"] = True\n'
        "model = DDP(model, device_ids=[device], **ddp_args)",
        "options = dict(device_ids=[args.gpu], output_device=args.gpu)\nmodel = DDP(model, **options)",
        'options = {"device_ids": [args.gpu], "static_graph": True}\nmodel = DDP(model, **options)',
        'options = {}\nif args.gpu is not None:\n    options["device_ids"] = [args.gpu]\n'
        "model = DDP(model, **options)",
        "options = dict()\noptions.update(device_ids=[args.gpu])\nmodel = DDP(model, **options)",
        'options = {}\noptions.update({"output_device": 0, "static_graph": True})\n'
        "model = DDP(model, **options)",
        'options = {}\noptions |= {"device_ids": [0]}\nmodel = DDP(model, **options)',
        'model = DDP(model, **({"device_ids": [0]} if args.gpu else {}))',
        'model = DDP(model, **{"device_ids": [0], "static_graph": True})',
        "base = dict(device_ids=[0])\noptions = dict(base, static_graph=True)\n"
        "model = DDP(model, **options)",
        "base = dict(device_ids=[0])\noptions = {**base}\nmodel = DDP(model, **options)",
        "options = dict(device_ids=[0]) if args.gpu else {}\nmodel = DDP(model, **options)",
    ],
)
def test_devices_in_dictionaries_go(body: str, style: Literal["native", "portable"]) -> None:
    text, reports = rewrite(body, style)
    assert "device_ids" not in text
    assert "output_device" not in text
    assert reports == []
    compile(text, "script.py", "exec")
    assert ("gradient_as_bucket_view=True" in text) == (style == "native")


def test_a_view_that_a_dictionary_passes_is_not_passed_twice() -> None:
    text, reports = rewrite(
        "options = dict(gradient_as_bucket_view=True)\nmodel = DDP(model, device_ids=[0], **options)"
    )
    assert "DDP(model, **options)" in text
    assert text.count("gradient_as_bucket_view") == 1
    assert reports == []


@pytest.mark.parametrize(
    "body",
    [
        "model = DDP(model, device_ids=[device], **given)",
        "model = DDP(model, device_ids=[device], **args.ddp)",
        "model = DDP(model, device_ids=[device], **vars(args))",
        "options = {}\nfill(options)\nmodel = DDP(model, device_ids=[device], **options)",
    ],
)
def test_a_literal_device_goes_also_beside_a_dictionary_that_is_not_known(body: str) -> None:
    text, reports = rewrite(body)
    assert "device_ids" not in text
    assert "gradient_as_bucket_view" not in text
    assert len(reports) == 1
    assert "device_ids" in reports[0]


@pytest.mark.parametrize(
    "use",
    ["model = Other(model, **options)", 'print(options["device_ids"])', "for k in options: pass"],
)
def test_devices_that_something_else_uses_too_are_reported(use: str) -> None:
    text, reports = rewrite(f"options = dict(device_ids=[0])\n{use}\nmodel = DDP(model, **options)")
    assert "device_ids=[0]" in text
    assert len(reports) == 1
