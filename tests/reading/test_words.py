"""Names mean the same to every rule and hazard."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.reading.tree.source import parse
from migrate.reading.values.words import CALLED_MODEL, MODEL, words
from migrate.rewrite.story import rewrite_source

MODELS = words(
    "model net network module backbone encoder decoder generator discriminator student teacher critic actor "
    "classifier criterion loss_fn loss_func loss_function netG netD net_g net_d G_net d_net model_ema "
    "model_without_ddp ddp_model my_model model1 model2 netD_2 student_net teacher_model policy_net "
    "target_network value_network text_encoder image_decoder raw_model net_ema model_ddp"
)
OTHERS = words(
    "x inputs labels models_path loss outputs noise optimizer loader network_path netlist"
)
LOOP = """
import torch


def train({name}, loader, optimizer, size):
    {name}.cuda()
    for images in loader:
        noise = torch.randn(size, device="cuda")
        optimizer.zero_grad()
        made = {name}(noise)
        if made.max() > 3:
            made = made / 2
        made.mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_is_one_wherever_it_is_asked_for(name: str) -> None:
    assert MODEL.fullmatch(name)
    assert CALLED_MODEL.fullmatch(name)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_what_is_no_model_is_none(name: str) -> None:
    assert not MODEL.fullmatch(name)


@pytest.mark.parametrize("name", ["classifier", "critic", "netD", "student"])
def test_what_is_found_does_not_hang_on_what_the_model_is_for(name: str) -> None:
    def said(of: str) -> tuple[list[str], list[str]]:
        source = parse(LOOP.format(name=of).encode(), Path("script.py"))
        hits = [(one.line, one.code) for one in check_source(source, Config())]
        notes = [(one.line, one.rule) for one in rewrite_source(source).findings]
        return [str(one) for one in hits], [str(one) for one in notes]

    assert said(name) == said("model")
    assert said(name)[0]


def test_what_a_tensor_is_like_is_no_read() -> None:
    script = """
import torch


def train(model, loader, optimizer):
    model.cuda()
    for images in loader:
        out = model(images.cuda())
        if out.is_sparse or out.is_quantized or out.layout is torch.strided:
            out = out.to_dense()
        loss = out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert b"with torch_xla.step():" in done.data
    assert not [note.message for note in done.findings if "waits" in note.message]
