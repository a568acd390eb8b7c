"""Names mean the same to every rule and hazard."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue.words import CALLED_MODEL, MODEL, words
from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

MODELS = words(
    "model net network module backbone encoder decoder generator discriminator student teacher critic actor "
    "classifier criterion loss_fn loss_func loss_function netG netD net_g net_d G_net d_net model_ema "
    "model_without_ddp ddp_model my_model model1 model2 netD_2 student_net teacher_model policy_net "
    "target_network value_network subnet supernet text_encoder image_decoder raw_model net_ema model_ddp"
)
OTHERS = words(
    "x inputs labels models_path loss outputs noise optimizer loader network_path netlist subnets"
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


def codes(script: str) -> list[tuple[int, str]]:
    """Return the lines and codes of what `migrate check` says of `script`."""
    found = check_source(parse(script.encode(), Path("script.py")), Config())
    return [(one.line, one.code) for one in found]


@pytest.mark.parametrize(
    "variable",
    ["LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK"],
)
def test_every_launcher_s_rank_is_one_to_the_guards(variable: str) -> None:
    script = f"""
import os
import torch.distributed as dist


def finish(loss):
    if int(os.environ["{variable}"]) == 0:
        dist.all_reduce(loss)
"""
    assert (8, "XLA302") in codes(script)


@pytest.mark.parametrize("name", ["info", "warn", "warning", "exception", "critical", "fatal"])
def test_every_method_of_a_logger_shows_what_it_is_given(name: str) -> None:
    script = f"""
import torch


def train(model, loader, optimizer, logger):
    model.cuda()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        logger.{name}("loss %s", loss)
"""
    assert (12, "XLA204") in codes(script)


@pytest.mark.parametrize("name", ["state", "checkpoint", "snapshot"])
def test_what_is_saved_holds_weights_by_its_name(name: str) -> None:
    script = f"""
import torch


def save({name}, rank, path):
    if rank == 0:
        torch.save({name}, path)
"""
    found = check_source(parse(script.encode(), Path("script.py")), Config(select=("XLA301",)))
    assert [(one.line, one.severity.value) for one in found] == [(7, "error")]


@pytest.mark.parametrize("wait", ["torch.cuda.synchronize()", "torch.accelerator.synchronize()"])
def test_a_wait_for_the_gpu_becomes_one_for_the_device(wait: str) -> None:
    script = f"""
import torch
import torch.distributed as dist


def finish(x, rank):
    dist.all_reduce(x)
    {wait}
    if rank == 0:
        print(x)
"""
    assert "XLA308" not in [code for _, code in codes(script)]


@pytest.mark.parametrize("name", ["loss_scaler", "scaler", "scaler_d", "amp_scaler"])
def test_a_scaler_that_is_called_with_an_optimizer_ends_a_step(name: str) -> None:
    script = f"""
import torch


def train(model, loader, optimizer, {name}):
    model.cuda()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).mean()
        {name}(loss, optimizer)
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert b"with torch_xla.step():" in done.data


@pytest.mark.parametrize("name", ["args", "cfg", "hps", "options", "FLAGS"])
def test_options_are_the_same_on_every_replica(name: str) -> None:
    script = f"""
import torch
import torch.multiprocessing as mp


def worker(rank, {name}):
    model = torch.nn.Linear(3, 3).cuda()
    if {name}.keep and rank == 0:
        torch.save(model.state_dict(), "m.pt")
    if {name}.device == "cuda":
        print(1)


if __name__ == "__main__":
    mp.spawn(worker, args=({name},), nprocs=2)
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert done.findings == ()
    assert f"    if {name}.keep:\n        xm.save(".encode() in done.data
    assert f'{name}.device == "xla"'.encode() in done.data


@pytest.mark.parametrize("ends", ["sys.exit(1)", "os._exit(1)", "os.abort()"])
def test_a_script_that_ends_without_a_gpu_insists_on_one(ends: str) -> None:
    script = f"""
import os
import sys
import torch

if not torch.cuda.is_available():
    {ends}
x = torch.ones(3).cuda()
"""
    done = rewrite_source(
        parse(script.encode(), Path("script.py")), options=RewriteOptions(style="portable")
    )
    assert b"exit" not in done.data
    assert b"abort" not in done.data


@pytest.mark.parametrize(
    "call", ["rendezvous('x')", "all_to_all(x, 0, 0, 2)", "broadcast_master_param(x)"]
)
def test_every_collective_of_torch_xla_is_waited_for(call: str) -> None:
    script = f"""
import torch_xla.core.xla_model as xm


def finish(x):
    if xm.is_master_ordinal(local=False):
        xm.{call}
"""
    assert (7, "XLA302") in codes(script)
