"""Tensors and modules that are taken out of a dictionary: the batch in one, the losses in another."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse


def codes(script: str) -> list[tuple[str, int]]:
    """Return the code and the line of each finding that is more than something to see."""
    source = parse(textwrap.dedent(script).lstrip().encode(), Path("s.py"))
    found = check_source(source, Config())
    return [(one.code, one.line) for one in found if one.code in ("XLA103", "XLA201")]


@pytest.mark.parametrize(
    "moved",
    [
        "{k: v.to(device) for k, v in batch.items()}",
        "{k: v.cuda(non_blocking=True) for k, v in batch.items() if k != 'name'}",
        "{k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}",
        "dict((k, v.to(device)) for k, v in batch.items())",
        "dict(ids=batch['ids'].to(device))",
        "on_device(batch, device)",
    ],
)
def test_a_mask_of_a_batch_that_a_dictionary_holds(moved: str) -> None:
    script = f"""
        import torch


        def on_device(batch, device):
            return {{name: part.to(device) for name, part in batch.items()}}


        def train(model, rows, optimizer, pad):
            device = torch.device("cuda")
            model.to(device)
            for batch in torch.utils.data.DataLoader(rows, batch_size=8):
                batch = {moved}
                labels = batch["ids"].clone()
                labels[labels == pad] = -100
                model(batch["ids"], labels).backward()
                optimizer.step()
    """
    assert codes(script) == [("XLA103", 14)]


def test_a_dictionary_of_numbers_of_the_host_has_no_mask() -> None:
    assert not codes("""
        import numpy as np


        def train(model, rows, optimizer):
            for batch in rows:
                sizes = {k: np.asarray(len(v)) for k, v in batch.items()}
                counts = sizes["ids"]
                counts[counts == 0] = 1
                model(batch["ids"].cuda()).backward()
                optimizer.step()
    """)


FILLED = """
    import torch
    from torch import nn


    class Loss(nn.Module):
        def __init__(self, on):
            super().__init__()
            self.parts = {made}
            {filled}

        def forward(self, x, y):
            shown, loss = dict(), 0.0
            {loop}
                value = part(x.sigmoid(), y)
                loss += value
                shown["last"] = value.item()
            return loss, shown


    def train(model, loader, optimizer):
        model.cuda()
        loss = Loss(True)
        for x, y in loader:
            total, _ = loss(model(x.cuda()), y.cuda())
            total.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "filled", "loop"),
    [
        ("{}", 'if on: self.parts["a"] = nn.MSELoss()', "for name, part in self.parts.items():"),
        ("dict()", 'self.parts["a"] = nn.L1Loss()', "for part in self.parts.values():"),
        ("{}", "self.parts.update(a=nn.MSELoss())", "for name, part in self.parts.items():"),
        ("[]", "if on: self.parts.append(nn.MSELoss())", "for part in self.parts:"),
        ("[]", "self.parts.append(nn.L1Loss())", "for i, part in enumerate(self.parts):"),
        ('{"a": nn.MSELoss()}', "pass", "for name, part in self.parts.items():"),
    ],
)
def test_a_read_of_what_a_module_gives_that_a_container_holds(
    made: str, filled: str, loop: str
) -> None:
    script = FILLED.replace("{made}", made).replace("{filled}", filled).replace("{loop}", loop)
    assert codes(script) == [("XLA201", 16)]


def test_functions_of_the_host_in_a_container_give_no_tensor() -> None:
    script = (
        FILLED.replace("{made}", "{}")
        .replace("{filled}", 'self.parts["a"] = len')
        .replace("{loop}", "for name, part in self.parts.items():")
        .replace("value = part(x.sigmoid(), y)", "value = part(name)")
    )
    assert not codes(script)


def test_a_dictionary_of_modules_in_the_loop_itself() -> None:
    script = """
        import torch
        from torch import nn


        def train(model, loader, optimizer, on):
            model.cuda()
            losses = {}
            if on:
                losses["a"] = nn.MSELoss()
            for x, y in loader:
                out = model(x.cuda())
                for name, part in losses.items():
                    value = part(out, y.cuda())
                    print(name, value.item())
                    value.backward()
                optimizer.step()
    """
    assert codes(script) == [("XLA201", 14)]


@pytest.mark.parametrize(
    "made",
    [
        "[Masked('a')]",
        "[(Masked(name), 1.0) for name in 'ab']",
        "{'a': Masked('a')}.values()",
        "listed()",
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_a_mask_in_a_loss_of_a_list_that_a_call_passes(made: str, kept: bool) -> None:
    pairs = "(" in made.split("Masked")[0] or made == "listed()"
    script = f"""
        import torch


        class Masked:
            def __init__(self, name):
                self.name = name

            def compute(self, guess, wanted):
                missing = torch.isnan(wanted)
                return guess[~missing].sum()


        def listed():
            losses = []
            for name in "ab":
                losses.append((Masked(name), 1.0))
            return losses


        class Trainer:
            def __init__(self, losses):
                self.losses = losses

            def train(self, model, loader, optimizer, losses):
                model.cuda()
                for x, y in loader:
                    guess, total = model(x.cuda()), 0
                    for {"loss, weight" if pairs else "loss"} in {"self.losses" if kept else "losses"}:
                        total = total + loss.compute(guess, y.cuda())
                    total.backward()
                    optimizer.step()


        def main(model, loader, optimizer):
            Trainer({made}).train(model, loader, optimizer, {made})
    """
    assert ("XLA103", 10) in codes(script)


@pytest.mark.parametrize(
    ("masks", "at"),
    [
        ("[part['valid'].clone() for part in wanted]", "masks[i]"),
        ("[wanted[0]['valid'], wanted[1]['valid']]", "masks[i]"),
        ("wanted", "masks[i]['valid']"),
    ],
)
def test_a_mask_of_a_list_in_a_loss_that_an_option_names(masks: str, at: str) -> None:
    script = f"""
        import argparse

        import torch


        class Pairs:
            def __init__(self, norm):
                self.norm = norm

            def compute(self, guesses, wanted):
                masks = {masks}
                losses = []
                for i in range(len(wanted)):
                    losses.append(guesses[i][{at}].mean())
                return torch.stack(losses).mean()


        def main(args, model, loader, optimizer):
            model.cuda()
            criterion = eval(args.criterion)
            for batch in loader:
                parts = [part.cuda() for part in batch]
                criterion.compute([model(part) for part in parts], parts).backward()
                optimizer.step()


        def parser():
            parser = argparse.ArgumentParser()
            parser.add_argument("--criterion", default="Pairs(norm='l2')")
            return parser
    """
    assert ("XLA103", 14) in codes(script)


HANDED = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.tensorboard import SummaryWriter


    def forward(model, batch, info):
        info["losses"] = {given}
        return info


    def log(writer, info):
        losses = info["losses"]
        if writer is not None:
            for name, value in losses.items():
                writer.add_scalar(name, value, 1)


    def train(net, loader, optimizer):
        model = DDP(net.cuda())
        writer = SummaryWriter() if dist.get_rank() == 0 else None
        info = {{}}
        for batch in loader:
            info = forward(model, batch.cuda(), info)
            info["losses"]["loss"].backward()
            log(writer, info)
            optimizer.step()
            info = forward(model, batch.cuda(), info)
"""


@pytest.mark.parametrize(("given", "lines"), [("model(batch)", [16]), ('{"rows": len(batch)}', [])])
def test_the_first_replica_reads_what_another_function_put_in(given: str, lines: list[int]) -> None:
    script = textwrap.dedent(HANDED.format(given=given)).lstrip()
    found = check_source(parse(script.encode(), Path("s.py")), Config())
    assert [one.line for one in found if one.code == "XLA305"] == lines
