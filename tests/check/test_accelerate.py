"""What Accelerate does for the GPU and not on XLA, through the functions and files of a project."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.check.project import check_paths


def checked(folder: Path, code: str, **files: str) -> list[Finding]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return [one for one in check_paths([folder], Config()).findings if one.code == code]


ENGINE = """
    import torch


    class Logger:
        def log_every(self, iterable, every):
            for number, item in enumerate(iterable):
                yield item


    def symmetric(batch):
        return batch + batch


    def loss_of(batch, net, both=False):
        if both:
            batch = symmetric(batch)
        return net(batch).mean()


    def test(net, loader):
        for batch in Logger().log_every(loader, 10):
            loss_of(batch, net)


    def train(net, loader, accelerator, optimizer):
        for batch in Logger().log_every(loader, 10):
            accelerator.backward(loss_of(batch, net))
            optimizer.step()
"""
MAIN = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    import engine


    def build(dataset, size):
        loader = DataLoader(dataset, batch_size=size)
        return loader


    def main(datasets):
        accelerator = Accelerator()
        set_seed(0)
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = build(datasets.pop("train"), 4)
        tests = {name: build(one, 4) for name, one in datasets.items()}
        optimizer, net, loader = accelerator.prepare(optimizer, net, loader)
        for name, one in tests.items():
            engine.test(net, TESTED)
        engine.train(net, loader, accelerator, optimizer)
"""


@pytest.mark.parametrize(
    ("tested", "lines"),
    [("one", [18]), ("loader", []), ("accelerator.prepare(one)", [])],
)
def test_a_batch_of_a_loader_that_is_not_prepared(
    tmp_path: Path, tested: str, lines: list[int]
) -> None:
    found = checked(tmp_path, "XLA853", engine=ENGINE, main=MAIN.replace("TESTED", tested))
    assert [one.line for one in found] == lines
    assert all("main.py:11" in one.message for one in found)


def test_a_batch_that_the_script_moves_is_right(tmp_path: Path) -> None:
    moving = ENGINE.replace("yield item", "yield item.to(self.device)")
    main = MAIN.replace("TESTED", "one")
    assert not checked(tmp_path, "XLA853", engine=moving, main=main)
    inside = ENGINE.replace("return net(batch)", "batch = batch.cuda()\n        return net(batch)")
    assert not checked(tmp_path, "XLA853", engine=inside, main=main)


SEEDING = """
    import random
    import time

    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from transformers import AutoModel, AutoModelForSequenceClassification, Trainer

    from nets import Net
    from util import fix


    def prepared(accelerator, net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return accelerator.prepare(net, optimizer)


    def main(args, path):
        acc = Accelerator()
        BODY


    if __name__ == "__main__":
        main(None, "")
"""
NETS = "import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n"
UTIL = """
    import torch


    def fix(seed, rank=0):
        torch.manual_seed(seed + rank)
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("prepared(acc, Net())", "nothing seeds"),
        ("fix(3, acc.process_index)\nprepared(acc, Net())", "util.py:6"),
        ("fix(3 + acc.local_process_index)\nprepared(acc, Net())", "util.py:6"),
        ("set_seed(3, device_specific=True)\nprepared(acc, Net())", "device_specific"),
        ("torch.seed()\nprepared(acc, Net())", "by chance"),
        ("set_seed(int(time.time()))\nprepared(acc, Net())", "in each process"),
        ("seed = random.randint(0, 9)\nset_seed(seed)\nprepared(acc, Net())", "in each process"),
        (
            "if args.seed is not None:\n    set_seed(args.seed)\nprepared(acc, Net())",
            "not be given",
        ),
        ("net = Net()\nset_seed(3)\nprepared(acc, net)", "nothing seeds"),
        (
            "prepared(acc, AutoModelForSequenceClassification.from_pretrained(path))",
            "nothing seeds",
        ),
        ("Trainer(model=Net()).train()", "nothing seeds"),
    ],
)
def test_replicas_that_draw_weights_of_their_own(tmp_path: Path, body: str, why: str) -> None:
    script = SEEDING.replace("BODY", body.replace("\n", "\n        "))
    (found,) = checked(tmp_path, "XLA852", train=script, nets=NETS, util=UTIL)
    assert why in found.message


@pytest.mark.parametrize(
    "body",
    [
        "set_seed(3)\nprepared(acc, Net())",
        "fix(3)\nprepared(acc, Net())",
        "set_seed(3)\nnet = Net()\nfix(3, acc.process_index)\nprepared(acc, net)",
        "fix(3, acc.process_index)\nset_seed(3)\nprepared(acc, Net())",
        "prepared(acc, AutoModel.from_pretrained(path))",
        "net = Net()\nnet.load_state_dict(torch.load(path))\nprepared(acc, net)",
        "Trainer(model_init=Net).train()",
        "set_seed(3)\nTrainer(Net()).train()",
        "import torch_xla.core.xla_model as xm\nxm.broadcast_master_param(prepared(acc, Net()))",
    ],
)
def test_replicas_that_have_the_same_weights(tmp_path: Path, body: str) -> None:
    script = SEEDING.replace("BODY", body.replace("\n", "\n        "))
    assert not checked(tmp_path, "XLA852", train=script, nets=NETS, util=UTIL)
