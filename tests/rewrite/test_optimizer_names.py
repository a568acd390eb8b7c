"""An optimizer is what makes one, whatever it is called: the switch stands before its model moves."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse
from tests.waiting import LIMIT

ON = "torch.__future__.set_swap_module_params_on_conversion(True)"
HEAD = "import torch\nfrom torch import nn\n\n\n"
LOOP = """
    for x in data:
        loss = {net}(x.to("cuda")).pow(2).mean()
        {opt}.zero_grad()
        loss.backward()
        {opt}.step()
"""
DATA = "[torch.ones(2, 2)] * 3"
CALLEE = """
def train(net, data, {opt}, device):
    {move}
    for x in data:
        loss = net(x.to(device)).pow(2).mean()
        {opt}.zero_grad()
        loss.backward()
        {opt}.step()


def main():
    net = nn.Linear(2, 2)
    first = net.weight.detach().clone()
    {opt} = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(2):
        train(net, [torch.ones(2, 2)] * 3, {opt}, torch.device("cuda"))
    print("changed", not torch.equal(first, net.weight.detach().cpu()))


main()
"""
EARLY = {
    "two in one function": """
        def main(data):
            noise = torch.randn(4).to("cuda")
            G, D = nn.Linear(2, 2), nn.Linear(2, 2)
            opt_g = torch.optim.Adam(G.parameters())
            opt_d = torch.optim.Adam(D.parameters())
            place(G, D)


        def place(G, D):
            G.to("cuda")
            D.to("cuda")


        main([])
    """,
    "only the second": """
        def place(m):
            m = m.cuda()
            return m


        def main():
            G, D = nn.Linear(2, 2), nn.Linear(2, 2)
            G = place(G)
            a = torch.optim.SGD(G.parameters(), lr=0.1)
            b = torch.optim.SGD(D.parameters(), lr=0.1)
            D = place(D)


        main()
    """,
    "kept in dictionaries": """
        def train(nets, opts):
            nets["g"].to("cuda")
            opts["g"].step()


        def main():
            nets = {"g": nn.Linear(2, 2)}
            opts = {"g": torch.optim.Adam(nets["g"].parameters())}
            train(nets, opts)


        main()
    """,
    "kept in lists": """
        def main():
            nets, steppers = [], []
            for i in range(2):
                nets.append(nn.Linear(2, 2))
                steppers.append(torch.optim.SGD(nets[i].parameters(), lr=0.1))
            for m in nets:
                m.cuda()


        main()
    """,
    "an attribute and another method": """
        class Runner:
            def __init__(self, policy):
                self.policy = policy
                self.o = torch.optim.SGD(self.policy.parameters(), lr=0.1)

            def place(self):
                self.policy.to("cuda")

            def fit(self):
                self.place()
                self.o.step()


        Runner(nn.Linear(2, 2)).fit()
    """,
    "a class of its own": """
        class Mine(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})


        def main():
            f = nn.Linear(2, 2)
            s = Mine(f.parameters())
            f.cuda()


        main()
    """,
    "a class chosen by name": """
        def make(params, name):
            return getattr(torch.optim, name)(params, lr=0.1)


        def main():
            gpt = nn.Linear(2, 2)
            s = make(gpt.parameters(), "SGD")
            gpt.cuda()


        main()
    """,
    "a class of another library": """
        from lion_pytorch import Lion


        def main():
            m = nn.Linear(2, 2)
            a = Lion(m.parameters())
            m.cuda()


        main()
    """,
    "a partial": """
        import functools

        make = functools.partial(torch.optim.SGD, lr=0.1)


        def main():
            m = nn.Linear(2, 2)
            a = make(m.parameters())
            m.cuda()


        main()
    """,
    "a lambda": """
        def main():
            m = nn.Linear(2, 2)
            make = lambda params: torch.optim.SGD(params, lr=0.1)
            o = make(m.parameters())
            m = m.cuda()


        main()
    """,
    "a tuple that a function returns, and a schedule": """
        def build():
            m = nn.Linear(2, 2)
            o = torch.optim.SGD(groups(m), lr=0.1)
            return m, o, torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1.0)


        def groups(m):
            decayed = []
            for name, p in m.named_parameters():
                decayed.append(p)
            return [{"params": decayed}]


        def main():
            m, o, s = build()
            m.to("cuda")


        main()
    """,
    "the field of a data class": """
        from dataclasses import dataclass


        @dataclass
        class State:
            net: nn.Module
            o: object


        def fit(state):
            state.net.cuda()
            state.o.step()


        def main():
            net = nn.Linear(2, 2)
            o = torch.optim.SGD(net.parameters(), lr=0.1)
            fit(State(net, o))


        main()
    """,
}
SETTLED = {
    "made under a device": """
        def train(m, o):
            m.to("cuda")


        def main():
            with torch.device("cuda"):
                m = nn.Linear(2, 2)
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            train(m, o)


        main()
    """,
    "made under a device in a function": """
        def build():
            return nn.Linear(2, 2)


        def main():
            with torch.device("cuda"):
                m = build()
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            m.to("cuda")


        main()
    """,
    "made on the device": """
        def main():
            m = nn.Linear(2, 2, device="cuda")
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            m.to("cuda")


        main()
    """,
    "moved by its own constructor": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.Linear(2, 2)
                self.cuda()


        def main():
            m = Net()
            o = torch.optim.SGD(m.parameters(), lr=0.1)
            m.to("cuda")


        main()
    """,
    "moved by a helper": """
        def place(m):
            return m.cuda()


        def main():
            G, D = place(nn.Linear(2, 2)), place(nn.Linear(2, 2))
            a = torch.optim.SGD(G.parameters(), lr=0.1)
            b = torch.optim.SGD(D.parameters(), lr=0.1)
            G = place(G)


        main()
    """,
    "moved in the constructor": """
        class Trainer:
            def __init__(self, f):
                self.f = f.to("cuda")
                self.configure()

            def configure(self):
                self.o = torch.optim.SGD(self.f.parameters(), lr=0.1)

            def again(self):
                self.f.to("cuda")


        Trainer(nn.Linear(2, 2)).again()
    """,
}


def script(text: str) -> str:
    return HEAD + textwrap.dedent(text).lstrip("\n")


def mentions(path: Path) -> list[str]:
    return [hit.message for hit in findings_of([path], Config())[1] if hit.code == "XLA805"]


def named(opt: str, move: str = "net.to(device)") -> str:
    return HEAD + CALLEE.lstrip("\n").format(opt=opt, move=move)


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "opt", ["o", "sgd", "opt", "optimiser", "optimizer_G", "solver", "adam", "optimizer"]
)
def test_the_name_decides_nothing(opt: str, style: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(named(opt))
    done = rewrite_source(parse(path.read_bytes(), path), options=RewriteOptions(style=style))
    assert done.data.decode().count(ON) == 1
    assert [n for n in done.findings if n.rule in ("optimizer-order", "XLA805")] == []
    assert mentions(path) == ["the model moves only in line 6: these weights would never change"]


@pytest.mark.parametrize(
    "move",
    ["net.cuda()", "net = net.to(device)", "net.train().to(device)", "net.to(device).train()"],
)
def test_however_it_moves(move: str) -> None:
    done = rewrite_source(parse(named("o", move).encode(), Path("train.py")))
    assert done.data.decode().count(ON) == 1


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("case", EARLY)
def test_one_that_is_made_too_early_is_mended_and_checked(
    case: str, style: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(EARLY[case]))
    assert mentions(path)
    done = rewrite_source(parse(path.read_bytes(), path), options=RewriteOptions(style=style))
    assert ON in done.data.decode()
    path.write_bytes(done.data)
    assert mentions(path) == []
    again = rewrite_source(parse(done.data, path), options=RewriteOptions(style=style))
    assert again.data == done.data


@pytest.mark.parametrize("case", SETTLED)
def test_one_whose_model_is_there_is_left_alone(case: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(SETTLED[case]))
    assert mentions(path) == []
    done = rewrite_source(parse(path.read_bytes(), path))
    assert ON not in done.data.decode()
    assert [n for n in done.findings if n.rule == "optimizer-order"] == []


MAIN = """
from torch import nn
from making import make
from place import fit

net = nn.Linear(2, 2)
fit(net, make(net))
"""
MAKING = "import torch\n\n\ndef make(m):\n    return torch.optim.SGD(m.parameters(), lr=0.1)\n"
PLACE = """
def fit(f, o):
    f.to("cuda")
    o.step()
"""


def test_three_files(tmp_path: Path) -> None:
    files = {"main.py": MAIN, "making.py": MAKING, "place.py": PLACE}
    for name, text in files.items():
        (tmp_path / name).write_text(text.lstrip("\n"))
    done = rewrite_folder(tmp_path)
    texts = {str(file.name): file.after.decode() for file in done.files}
    assert f'    {ON}\n    f.to("xla")\n' in texts["place.py"]
    assert [n for file in done.files for n in file.findings if n.rule == "optimizer-order"] == []


def test_of_three_files_only_one_is_rewritten(tmp_path: Path) -> None:
    for name, text in {"main.py": MAIN, "making.py": MAKING, "place.py": PLACE}.items():
        (tmp_path / name).write_text(text.lstrip("\n"))
    path = tmp_path / "main.py"
    here = """
import torch

opt = torch.optim.SGD(net.parameters(), lr=0.1)
fit(net, opt)
x = torch.ones(2).cuda()
"""
    data = MAIN.replace("fit(net, make(net))\n", here.lstrip("\n"))
    path.write_text(data.lstrip("\n"))
    done = rewrite_source(parse(path.read_bytes(), path))
    assert f"{ON}\nopt = torch.optim" in done.data.decode()


GIVEN = "def fit({model}, {opt}, data):\n    {model}.to('cuda')" + LOOP


@pytest.mark.parametrize(("model", "opt"), [("f", "s"), ("policy", "solver"), ("m", "o")])
def test_what_callers_that_are_not_known_give_is_known_by_its_use(model: str, opt: str) -> None:
    text = HEAD + GIVEN.format(model=model, opt=opt, net=model)
    done = rewrite_source(parse(text.encode(), Path("fit.py")))
    assert f"    {ON}\n    {model}.to('xla')" in done.data.decode()


def test_a_schedule_is_no_optimizer() -> None:
    text = """
        def fit(f, s: torch.optim.lr_scheduler.LRScheduler, batch):
            f.to("cuda")
            f(batch.cuda())
            s.step()
    """
    done = rewrite_source(parse(script(text).encode(), Path("fit.py")))
    assert ON not in done.data.decode()


@pytest.mark.parametrize("opt", ["o", pytest.param("optimizer_G", marks=pytest.mark.long)])
@pytest.mark.long_cases("o")
def test_the_rewritten_script_trains(opt: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    done = rewrite_source(parse(named(opt).encode(), path))
    path.write_bytes(done.data)
    ran = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert "changed True" in ran.stdout


@pytest.mark.parametrize(
    "use",
    [
        "for group in o.param_groups:\n        group['lr'] = 0.1",
        "return torch.optim.lr_scheduler.StepLR(o, 10)",
        "return torch.optim.lr_scheduler.StepLR(optimizer=o, step_size=10)",
        "o.add_param_group({'params': []})",
        "scaler.unscale_(o)",
    ],
)
def test_what_is_used_as_only_an_optimizer_can_be_is_one(use: str) -> None:
    text = f"import torch\n\n\ndef prepare(model, o, scaler):\n    model.cuda()\n    {use}\n"
    done = rewrite_source(parse(text.encode(), Path("prepare.py")))
    assert ON in done.data.decode()


def test_a_parameter_that_is_used_in_another_way_is_none() -> None:
    text = "def prepare(model, o):\n    model.cuda()\n    return o.run(model)\n"
    done = rewrite_source(parse(text.encode(), Path("prepare.py")))
    assert ON not in done.data.decode()


@pytest.mark.parametrize(
    ("parameter", "use", "is_one"),
    [
        ("optim", "pass", True),
        ("optimizer: torch.optim.Optimizer", "pass", True),
        ("optim: dict[str, object] | None", "pass", False),
        ("optimizer: OptimizerConfig", "pass", False),
        ("optimizer: OptimConf", "pass", False),
        ("optim", "self.settings = Settings(**optim)", False),
    ],
)
def test_settings_of_an_optimizer_are_none(parameter: str, use: str, is_one: bool) -> None:
    text = (
        "import torch\n\n\nclass Trainer:\n"
        f"    def __init__(self, model, {parameter}):\n        {use}\n"
        "        self.model = model\n        self.move()\n\n"
        "    def move(self):\n        self.model.eval()\n        self.model.cuda()\n"
    )
    done = rewrite_source(parse(text.encode(), Path("prepare.py")))
    assert (ON in done.data.decode()) is is_one


def rewritten(folder: Path) -> list[str]:
    return [file.after.decode() for file in rewrite_folder(folder).files]


SAVING = """
import torch


def save(model, first, second=None):
    state = {"first": first.state_dict()}
    if second is not None:
        USE
    torch.save(state, "x.pt")
"""
TRAINING = """
import sys
from copy import deepcopy
import torch
import nets
from saving import save


def main():
    device = torch.device("cuda")
    model = nets.__dict__[sys.argv[1]]()
    model.to(device)
    bare = model
    ema = deepcopy(bare).to(device)
    if len(sys.argv) > 2:
        model = torch.nn.parallel.DistributedDataParallel(model)
        bare = model.module
    first = torch.optim.AdamW(bare.parameters())
    second = torch.optim.AdamW(bare.head.parameters())
    save(model=bare, first=first, second=second)


if __name__ == "__main__":
    main()
"""
NETS = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)


def small():
    return Net()
"""


@pytest.mark.parametrize(
    "use",
    [
        "state.update(second=second.state_dict())",
        "state.setdefault('second', second.state_dict())",
        "second.add_param_group({'params': model.parameters()})",
        "second.state.update(model.named_parameters())",
    ],
)
def test_what_is_kept_of_an_optimizer_is_no_optimizer(use: str, tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(SAVING.replace("USE", use))
    (tmp_path / "train.py").write_text(TRAINING)
    without = TRAINING.replace(", second=second)", ")").split("\n")
    without = [line for line in without if "bare.head" not in line]
    (tmp_path / "train_first.py").write_text("\n".join(without))
    (tmp_path / "nets.py").write_text(NETS)
    assert not any(ON in text for text in rewritten(tmp_path))
    assert mentions(tmp_path / "saving.py") == []


FACTORY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)


def build(name):
    return {"net": Net}[name]()
"""
ONE_SCRIPT = """
from factory import build
import torch


def main():
    model = build("net")
    model.to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


if __name__ == "__main__":
    main()
"""
HELD = """
from factory import build
import torch
from pytorch_lightning import LightningModule, Trainer


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build("net")

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


if __name__ == "__main__":
    Trainer().fit(Module())
"""
MADE_AT_ONCE = HELD.replace(
    '("net")\n', '("net")\n        self.o = torch.optim.SGD(self.model.parameters(), lr=0.1)\n'
)
IN_THE_BODY = """
from factory import build
import torch

model = build("net")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("other", [HELD, MADE_AT_ONCE, IN_THE_BODY])
def test_a_script_that_never_runs_with_this_one_makes_no_optimizer_for_it(
    other: str, tmp_path: Path
) -> None:
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "train.py").write_text(ONE_SCRIPT)
    (tmp_path / "other.py").write_text(other)
    assert not any(ON in text for text in rewritten(tmp_path))
    assert mentions(tmp_path / "other.py") == []


def test_two_files_of_one_script_are_followed(tmp_path: Path) -> None:
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "making.py").write_text(
        "import torch\nfrom factory import build\n\n\ndef make():\n    model = build('net')\n"
        "    return model, torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    (tmp_path / "placing.py").write_text("def place(model):\n    model.to('cuda')\n")
    (tmp_path / "train.py").write_text(
        "from making import make\nfrom placing import place\n\n\ndef main():\n"
        "    model, optimizer = make()\n    place(model)\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    assert any(ON in text for text in rewritten(tmp_path))


DECODES = """
import pytorch_lightning as pl
from nets import make


class Base(pl.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.model = make(config)


class Diffusion(Base):
    def decode(self, z):
        {line}
        return self.model(z)

    def rows(self, samples):
        row = []
        for z in samples:
            row.append(self.decode(z.to(self.device)))
        return row

    def show(self, cond):
        first, rest = self.get(cond)
        return self.rows([first])

    def configure_optimizers(self):
        params = list(self.model.parameters())
        return torch.optim.AdamW(params, lr=0.1)
"""


@pytest.mark.parametrize(("line", "reported"), [("z = 2.0 * z", False), ("z = z.eval()", True)])
def test_a_sample_that_is_moved_and_computed_with_is_no_model(
    tmp_path: Path, line: str, reported: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + DECODES.format(line=line))
    assert (
        bool([one for one in findings_of([path], Config())[1] if one.code == "XLA805"]) is reported
    )


COPY = """
import copy
import torch

net = torch.nn.Linear(8, 8){here}
twin = copy.deepcopy(net)
{before}
optimizer = torch.optim.AdamW({of}.parameters(), lr=0.1)
{after}
"""


@pytest.mark.parametrize(
    ("here", "before", "of", "after", "reported"),
    [
        ("", "twin.cuda()", "net", "net.cuda()", True),
        ("", "", "twin", "twin.cuda()", True),
        ("", "", "twin", "net.cuda()", False),
        (".cuda()", "", "twin", "twin.cuda()", False),
    ],
)
def test_a_deep_copy_moves_alone(
    tmp_path: Path, here: str, before: str, of: str, after: str, reported: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(COPY.format(here=here, before=before, of=of, after=after))
    messages = [hit.message for hit in findings_of([path], Config())[1] if hit.code == "XLA805"]
    assert any("moves only in line" in message for message in messages) is reported


TWO_OF_ONE_FACTORY = """
import functools
import torch


{decorator}
def build():
    return torch.nn.Linear(8, 8)


def place(net):
    net.cuda()


def evaluate():
    net = build()
    place(net)


def train():
    {first}
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    place(model)


{before}
train()
"""


@pytest.mark.parametrize(
    ("decorator", "first", "before", "reported"),
    [
        ("", "", "evaluate()", True),
        ("", "place(build())", "", True),
        ("", "teacher = build(); place(teacher)", "", True),
        ("@functools.cache", "", "evaluate()", False),
    ],
)
def test_each_call_of_a_factory_makes_a_model_of_its_own(
    tmp_path: Path, decorator: str, first: str, before: str, reported: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        TWO_OF_ONE_FACTORY.format(decorator=decorator, first=first or "pass", before=before)
    )
    assert any(hit.code == "XLA805" for hit in findings_of([path], Config())[1]) is reported
