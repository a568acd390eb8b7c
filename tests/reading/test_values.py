"""What expressions are: one answer for devices, tensors and modules, and that nothing certain is guessed."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.script import Script
from migrate.reading.values.host import is_on_the_cpu
from migrate.syntax.source import parse
from migrate.syntax.tree import nodes_of

LOOP = """
for x, y in loader:
    loss = model(x.to("cuda"))
    loss.backward()
    optimizer.step()
"""


def kinds(text: str) -> list[Kind]:
    """Return the kinds of what is handed to `asked(…)` in a script."""
    script = Script(parse(f"import torch\n{text}\n".encode(), Path("script.py")))
    calls = [call for call in nodes_of(script.module, cst.Call) if called(call) == "asked"]
    assert calls
    return [Facts(script).values.kind(arg.value) for call in calls for arg in call.args]


def called(call: cst.Call) -> str:
    return call.func.value if isinstance(call.func, cst.Name) else ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("asked('cuda:0')", Kind.CUDA),
        ("asked('cpu')", Kind.CPU),
        ("asked('xla')", Kind.XLA),
        ("asked('name', )", Kind.HOST),
        ("def f(gpu):\n    asked(gpu)", Kind.INDEX),
        ("net = torch.nn.Linear(3, 3)\nasked(net)", Kind.MODEL),
        ("x = torch.ones(3)\nasked(x)", Kind.HOST),
        ("x = torch.ones(3)\nx = x.cuda()\nasked(x)", Kind.ON_DEVICE),
        ("x = unknown()\nasked(x)", Kind.UNKNOWN),
        ("for g in opt.param_groups:\n    asked(g['lr'])", Kind.HOST),
        ("for i, g in enumerate(opt.param_groups):\n    asked(g['weight_decay'])", Kind.HOST),
        ("asked(opt.param_groups[0]['lr'])", Kind.HOST),
        ("g = opt.param_groups[0]\nasked(g['lr'])", Kind.HOST),
        ("for k in net.state_dict():\n    asked(k)", Kind.HOST),
        (
            "def keys(x):\n    return x.cuda()\nfor k in keys(torch.ones(2)):\n    asked(k)",
            Kind.ON_DEVICE,
        ),
        ("def keys(x):\n    return {'a': x}\nfor k in keys(net):\n    asked(k)", Kind.HOST),
        ("device = 'cuda'\nif small:\n    device = 'cpu'\nasked(device)", Kind.CUDA),
    ],
)
def test_each_kind(text: str, kind: Kind) -> None:
    assert kinds(text) == [kind]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            f"scaler = torch.amp.GradScaler('cuda')\n{LOOP}\n    asked(scaler.scale(loss))",
            Kind.ON_DEVICE,
        ),
        ("from functools import partial\nf = partial(torch.add, 1)\nasked(f)", Kind.UNKNOWN),
        (
            f"import functools\n{LOOP}\n    asked(functools.reduce(max, [loss, loss]))",
            Kind.ON_DEVICE,
        ),
        (f"import itertools\n{LOOP}\n    asked(itertools.chain([loss]))", Kind.ON_DEVICE),
        (f"{LOOP}\n    asked(torch.as_tensor(loss))", Kind.ON_DEVICE),
        (f"{LOOP}\n    asked(torch.as_tensor(x, device='cuda'))", Kind.ON_DEVICE),
        (f"{LOOP}\n    asked(torch.as_tensor(loss, device='cpu'))", Kind.HOST),
        ("asked(torch.as_tensor(3))", Kind.HOST),
        ("asked(torch.load('a.pt', map_location='cpu'))", Kind.HOST),
        ("asked(torch.load('a.pt', map_location=torch.device('cuda')))", Kind.UNKNOWN),
    ],
)
def test_what_only_hands_on_is_where_that_is(text: str, kind: Kind) -> None:
    assert kinds(text) == [kind]


@pytest.mark.parametrize("made", ["torch.hann_window(3)", "torch.zeros(3)", "torch.tensor([3])"])
def test_what_is_made_of_numbers_is_on_the_host_by_both_answers(made: str) -> None:
    script = Script(parse(f"import torch\nx = {made}\n".encode(), Path("script.py")))
    (call,) = nodes_of(script.module, cst.Call)
    assert is_on_the_cpu(call, script)
    assert kinds(f"asked({made})") == [Kind.HOST]


@pytest.mark.parametrize(
    "text",
    [
        f"device = torch.device('cpu')\n{LOOP}\n    asked(loss.to(device))",
        f"{LOOP}\n    device = 'cpu'\n    asked(torch.zeros(3, device=device))",
        "asked(torch.zeros(3, device=torch.device('cpu')))",
    ],
)
def test_a_device_that_is_the_cpu_by_its_name_only_is_the_host(text: str) -> None:
    """They were on the device before: the text of the argument was looked at, not what it is bound to."""
    assert kinds(text) == [Kind.HOST]


@pytest.mark.parametrize(
    "text",
    [
        "def f(device='cpu'):\n    asked(x.to(device))",
        "parser.add_argument('--device', default='cpu')\nargs = parser.parse_args()\n"
        "asked(x.to(args.device))",
        "device = 'cpu'\nif big:\n    device = 'cuda'\nasked(x.to(device))",
    ],
)
def test_a_default_is_not_all_that_a_device_may_be(text: str) -> None:
    assert kinds(text) == [Kind.ON_DEVICE]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def pick():\n    return 'cuda' if big else 'cpu'\n\nasked(pick())", Kind.CUDA),
        ("from torch import *\n\nx = zeros(3, device='cuda')\nasked(x)", Kind.ON_DEVICE),
    ],
)
def test_what_one_of_two_answers_did_not_know(text: str, kind: Kind) -> None:
    """A host value before to one of them: a device that a function returns, tensors by star imports."""
    assert kinds(text) == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "asked(['cuda', 'cpu'])",
        "a, b = pair('cuda')\nasked(a)",
        "for name in ('cuda', 'cpu'):\n    asked(name)",
        "asked(len('cuda'))",
    ],
)
def test_what_holds_a_device_is_none(text: str) -> None:
    assert kinds(text)[0] in (Kind.HOST, Kind.UNKNOWN)


LOADER = (
    "import torch_xla.distributed.parallel_loader as pl\nloader = pl.MpDeviceLoader(data, device)\n"
)


MADE = "from torch.utils.data import DataLoader\nfed = DataLoader(images, batch_size=4)\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{MADE}asked(fed)", Kind.LOADER),
        (f"{MADE}asked(enumerate(fed))", Kind.LOADER),
        (f"{MADE}import tqdm\nasked(tqdm.tqdm(fed))", Kind.LOADER),
        (f"{MADE}for x in fed:\n    asked(x.sum())", Kind.TENSOR),
        (f"{MADE}for i, (x, y) in enumerate(fed):\n    asked(y)", Kind.TENSOR),
        (f"{MADE}for i, (x, y) in enumerate(fed):\n    asked(i)", Kind.HOST),
        (f"{MADE}asked(len(fed))", Kind.HOST),
        (f"{MADE}asked(fed.batch_size)", Kind.HOST),
        (f"{MADE}x, y = next(iter(fed))\nasked(x)", Kind.UNKNOWN),
        (f"{MADE}a, b = fed, images\nasked(b)", Kind.UNKNOWN),
    ],
)
def test_loaders(text: str, kind: Kind) -> None:
    assert kinds(text) == [kind]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{LOADER}asked(loader)", Kind.DEVICE_LOADER),
        (f"{LOADER}asked(enumerate(loader))", Kind.DEVICE_LOADER),
        (f"{LOADER}import tqdm\nasked(tqdm.tqdm(enumerate(loader)))", Kind.DEVICE_LOADER),
        (f"{LOADER}for x, y in loader:\n    asked(x.sum())", Kind.ON_DEVICE),
        (f"{LOADER}asked(len(loader))", Kind.HOST),
        ("asked(torch.optim.SGD(weights))", Kind.OPTIMIZER),
        ("made = torch.optim.AdamW(weights)\nasked(made)", Kind.OPTIMIZER),
        ("made = torch.optim.AdamW(weights)\nasked(made.param_groups)", Kind.HOST),
        ("made = torch.optim.AdamW(weights)\nasked(made.state_dict())", Kind.ON_DEVICE),
        ("asked(torch.optim.lr_scheduler.StepLR(made))", Kind.HOST),
    ],
)
def test_loaders_of_the_device_and_optimizers(text: str, kind: Kind) -> None:
    assert kinds(text) == [kind]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("me = int(os.environ['RANK'])\nif me == 0:\n    pass", True),
        ("me = torch.cuda.current_device()\nif me == 0:\n    pass", True),
        ("me = dist.get_rank()\nwhile me != 0:\n    pass", True),
        ("me = int(os.environ['SEED'])\nif me == 0:\n    pass", False),
        ("for device_id in range(8):\n    if device_id == 0:\n        pass", False),
    ],
)
def test_an_index_under_another_name_is_one(text: str, asks: bool) -> None:
    """Tests of the rank knew the index by the names that scripts give it, devices by where it is from."""
    source = f"import os\nimport torch\nimport torch.distributed as dist\n{text}\n".encode()
    assert Script(parse(source, Path("script.py"))).guards.any is asks


OF_A = "class A:\n    def run(self, x):\n        asked(x)\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{OF_A}A().run(torch.ones(3).cuda())", Kind.ON_DEVICE),
        (f"{OF_A}a = A()\na.run(torch.ones(3).cuda())", Kind.ON_DEVICE),
        (
            f"{OF_A}class B:\n    def run(self, x): ...\n"
            "    def go(self):\n        self.run(torch.ones(3).cuda())",
            Kind.UNKNOWN,  # another class's method of that name
        ),
    ],
)
def test_what_a_method_is_passed(text: str, kind: Kind) -> None:
    assert kinds(text) == [kind]
