"""Calls that lose or get arguments keep the lines that their author gave them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = (
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\nmodel.cuda()\n"
)
VIEW = "gradient_as_bucket_view=True"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DDP(model, device_ids=[0])", f"DDP(model, {VIEW})"),
        ("DDP(\n    model, device_ids=[0])", f"DDP(\n    model, {VIEW})"),
        ("DDP(\n    model,\n    device_ids=[0]\n)", f"DDP(\n    model,\n    {VIEW}\n)"),
        ("DDP(\n    model,\n    device_ids=[0],\n)", f"DDP(\n    model,\n    {VIEW},\n)"),
        ("DDP(\n    model\n)", f"DDP(\n    model,\n    {VIEW}\n)"),
        ("DDP(\n    model,\n)", f"DDP(\n    model,\n    {VIEW},\n)"),
        ("DDP(\n    model\n    , device_ids=[0])", f"DDP(\n    model\n    , {VIEW})"),
        ("DDP(model,\n    device_ids=[0])", f"DDP(model,\n    {VIEW})"),
        (
            "torch.utils.data.DataLoader(\n    data, num_workers=0, pin_memory=True,\n    shuffle=False,\n)",
            "torch.utils.data.DataLoader(\n    data, num_workers=0,\n    shuffle=False,\n)",
        ),
        (
            "torch.cuda.amp.GradScaler(\n    init_scale=1.0, growth_interval=10\n)",
            'torch.amp.GradScaler(\n    "xla", init_scale=1.0, growth_interval=10, enabled=False\n)',
        ),
    ],
)
def test_closing_bracket(before: str, after: str) -> None:
    done = rewrite_source(parse(f"{HEAD}made = {before}\n".encode(), Path("script.py")))
    assert textwrap.dedent(done.data.decode()).endswith(f"made = {after}\n")


@pytest.mark.parametrize("at_module_level", [True, False])
def test_an_option_that_nobody_passes_is_not_required(at_module_level: bool) -> None:
    options = (
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int, required=True, help='which')\n"
        "args = parser.parse_args()\n"
    )
    body = "torch.distributed.init_process_group('nccl')\ntorch.cuda.set_device(args.local_rank)\n"
    if at_module_level:
        text = f"{options}\n\ndef main():\n{textwrap.indent(body, '    ')}"
    else:
        text = f"def main():\n{textwrap.indent(options + body, '    ')}"
    text = (
        f"import argparse\n\nimport torch\n\n\n{text}\n\nif __name__ == '__main__':\n    main()\n"
    )
    done = rewrite_source(parse(text.encode(), Path("script.py"))).data.decode()
    assert "required" not in done
    assert "LOCAL_RANK" in done
