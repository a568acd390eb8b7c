"""Autocast regions whose arguments come from a dictionary, or are bound by functools.partial."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

HEAD = """
from functools import partial

import torch
from torch.cuda.amp import autocast


def train(model, x, args, given):
"""


def done(body: str, style: str) -> Rewrite:
    script = HEAD.lstrip() + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    return rewrite_source(
        parse(script.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )


CASES = {
    "dict": (
        "options = dict(dtype=torch.float16, enabled=args.amp)\nwith autocast(**options):",
        "options = dict(dtype=torch.bfloat16, enabled=args.amp)\nwith torch.autocast('xla', **options):",
        "with shims.autocast(**options):",
    ),
    "literal": (
        "options = {'dtype': torch.half, 'enabled': True}\nwith torch.autocast('cuda', **options):",
        "options = {'dtype': torch.bfloat16, 'enabled': True}\nwith torch.autocast('xla', **options):",
        "with shims.autocast(**options):",
    ),
    "in place": (
        "with autocast(**dict(dtype=torch.float16)):",
        "with torch.autocast('xla', **dict(dtype=torch.bfloat16)):",
        "with shims.autocast(**dict(dtype=torch.float16)):",
    ),
    "name": (
        "kind = torch.float16 if args.half else torch.bfloat16\noptions = dict(dtype=kind)\n"
        "with torch.autocast(device_type='cuda', **options):",
        "kind = torch.bfloat16\noptions = dict(dtype=kind)\n"
        "with torch.autocast(device_type='xla', **options):",
        "with shims.autocast(**options):",
    ),
    "a table, and what is taken in place of None": (
        "kind = {'none': None, 'fp16': torch.float16}[args.amp]\n"
        "with torch.autocast('cuda', dtype=kind or torch.bfloat16, enabled=kind is not None):",
        "kind = {'none': None, 'fp16': torch.bfloat16}[args.amp]\n"
        "with torch.autocast('xla', dtype=kind or torch.bfloat16, enabled=kind is not None):",
        "with shims.autocast(dtype=kind or torch.bfloat16, enabled=kind is not None):",
    ),
    "branches": (
        "if args.half:\n    options = dict(dtype=torch.float16)\n"
        "else:\n    options = dict(dtype=torch.float32, enabled=False)\nwith autocast(**options):",
        "if args.half:\n    options = dict(dtype=torch.bfloat16)\n"
        "else:\n    options = dict(dtype=torch.float32, enabled=False)\n"
        "with torch.autocast('xla', **options):",
        "with shims.autocast(**options):",
    ),
    "no type": (
        "options = dict(enabled=args.amp)\nwith autocast(**options):",
        "options = dict(enabled=args.amp)\n"
        "with torch.autocast('xla', dtype=torch.bfloat16, **options):",
        "with shims.autocast(dtype=torch.float16, **options):",
    ),
    "partial": (
        "region = partial(torch.autocast, 'cuda', dtype=torch.float16)\nwith region():",
        "region = partial(torch.autocast, 'xla', dtype=torch.bfloat16)\nwith region():",
        "region = partial(shims.autocast, dtype=torch.float16)",
    ),
    "partial of CUDA's": (
        "region = partial(autocast, enabled=args.amp)\nwith region():",
        "region = partial(torch.autocast, 'xla', dtype=torch.bfloat16, enabled=args.amp)\nwith region():",
        "region = partial(shims.autocast, dtype=torch.float16, enabled=args.amp)",
    ),
}


@pytest.mark.parametrize(("before", "after", "_"), CASES.values(), ids=CASES)
def test_the_region_is_for_xla(before: str, after: str, _: str) -> None:
    made = done(f"{before}\n    return model(x.cuda())", "native")
    text = made.data.decode().replace('"', "'")
    assert textwrap.indent(after, "    ") in text
    assert not made.findings


@pytest.mark.parametrize(("before", "_", "line"), CASES.values(), ids=CASES)
def test_the_region_keeps_its_type_on_cuda(before: str, _: str, line: str) -> None:
    made = done(f"{before}\n    return model(x.cuda())", "portable")
    assert f"    {line}\n" in made.data.decode()
    assert not made.findings


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "before",
    [
        "with autocast(**given):",
        "options = dict(dtype=torch.bfloat16)\noptions['dtype'] = args.dtype\nwith autocast(**options):",
        "options = dict(dtype=torch.bfloat16)\noptions.update(given)\nwith autocast(**options):",
        "options = dict(given, dtype=torch.bfloat16)\nwith autocast(**options):",
        "options = {**given, 'dtype': torch.bfloat16}\nwith autocast(**options):",
        "options = dict(dtype=args.dtype)\nwith autocast(**options):",
    ],
)
def test_what_the_script_does_not_show_is_reported(before: str, style: str) -> None:
    made = done(f"{before}\n    return model(x.cuda())", style)
    if style == "portable" and before.startswith("options = dict(dtype=args.dtype)"):
        assert "with shims.autocast(**options):" in made.data.decode()  # shims decides by the type
        return
    assert [note.rule for note in made.findings] == ["autocast"]
