"""An evaluation whose forward stands in a function of the project: the step goes around its call."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

LOOP = """
import torch

{callees}

@torch.no_grad()
def evaluate(model, loader):
    total = peak = 0.0
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        out = {call}
        total += (out - y).abs().mean().item()
        peak += (out - y).abs().max().item()
    return total, peak
"""
RUN = "def run(model, x):\n    return model(x)\n"
METHOD = """
class Tester:
    def __init__(self, model):
        self.model = model

    def run(self, x):
        return self.model(x)
"""
KEYWORDS = "def run(net, batch):\n    return {'flow': net.forward(batch)}\n"
LAYERS = """
class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def run(x):
    net = Net([torch.nn.Linear(4, 4)]).cuda()
    return net(x)
"""
CALLEES = [
    (LAYERS, "run(x)"),
    (RUN, "run(model, x)"),
    (RUN, "run(model, x).sigmoid()"),
    (f"{RUN}\n\ndef outer(model, x):\n    return run(model, x / 255) * 2\n", "outer(model, x)"),
    (METHOD, "Tester(model).run(x)"),
    (KEYWORDS, "run(batch=x, net=model)['flow']"),
    (RUN.replace("run", "compute_loss"), "compute_loss(model, x)"),
    (RUN.replace("run", "inference"), "inference(model, x)"),
    (RUN.replace("run", "validation_step"), "validation_step(model, x)"),
    (RUN.replace("run", "test_batch"), "test_batch(model, x)"),
]


def rewritten(text: str, style: Style = "native") -> str:
    options = RewriteOptions(style=style)
    done = rewrite_source(parse(text.encode(), Path("evaluate.py")), options=options)
    assert not rewrite_source(parse(done.data, Path("evaluate.py")), options=options).changed
    return done.data.decode()


def has_step(text: str, before: str, after: str) -> bool:
    """Whether the line with `before` lies in a step, and the one with `after` below it."""
    lines = text.splitlines()
    step = next((i for i, line in enumerate(lines) if ".step():" in line), None)
    if step is None:
        return False
    edge = len(lines[step]) - len(lines[step].lstrip())
    inside = next(i for i, line in enumerate(lines) if before in line and i > step)
    below = next(i for i, line in enumerate(lines) if after in line and i > step)
    return lines[inside].startswith(" " * (edge + 4)) and not lines[below].startswith(
        " " * (edge + 4)
    )


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(("callees", "call"), CALLEES)
def test_forward_in_a_callee_gets_the_step(callees: str, call: str, style: Style) -> None:
    text = rewritten(LOOP.format(callees=callees, call=call), style)
    assert has_step(text, "out = ", "total += "), text
    assert text.count(".step():") == 1


def test_step_of_a_callee_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "running.py").write_text(RUN)
    text = LOOP.format(callees="from running import run\n", call="run(model, x)")
    (tmp_path / "evaluate.py").write_text(text)
    files = {str(file.name): file for file in rewrite_folder(tmp_path).files}
    assert has_step(files["evaluate.py"].after.decode(), "out = ", "total += ")


PROCESSORS = """
class Plain:
    def prepare(self, x):
        return x * 2


class Cut:
    def prepare(self, x):
        return x[: int(x.max().item())]


def run(model, x, processor):
    return model(processor.prepare(x))


def evaluated(model, loader):
    return evaluate(model, loader, Plain()), {other}
"""


@pytest.mark.parametrize(("other", "steps"), [("evaluate(model, loader, Cut())", 1), ("0", 1)])
def test_callee_that_reads_with_one_class_of_several(other: str, steps: int) -> None:
    text = LOOP.format(callees="", call="run(model, x, processor)")
    text = text.replace("loader):", "loader, processor):") + PROCESSORS.replace("{other}", other)
    assert rewritten(text).count(".step():") == steps


def test_callee_that_takes_no_gradients() -> None:
    text = LOOP.replace("@torch.no_grad()\n", "")
    callee = f"@torch.no_grad()\n{RUN}"
    done = rewritten(text.format(callees=callee, call="run(model, x)"))
    assert has_step(done, "out = ", "total += ")


BRANCHES = """
import torch


class Trainer:
    def evaluate(self, model, loader, mode):
        self.model, total = model.cuda().eval(), 0.0
        with torch.no_grad():
            for x, y in loader:
                x, y = x.cuda(), y.cuda()
                if mode == "one":
                    loss = self.eval_batch(x, y)
                else:
                    loss = self.eval_other(x, y)
                total += loss
        return total / len(loader)

    def eval_batch(self, x, y):
        return (self.model(x) - y).abs().mean()

    def eval_other(self, x, y):
        {other}
"""
ROLLED = "for _ in range(3):\n            x = self.model(x)\n        return (x - y).mean()"


@pytest.mark.parametrize(
    ("other", "inside"),
    [
        (ROLLED, 'if mode == "one":'),
        ("return (self.model(x) - y).mean()", 'if mode == "one":'),
        ("return (self.model(x) - y).mean().item()", "loss = self.eval_batch(x, y)"),
    ],
)
def test_branches_of_one_evaluation(other: str, inside: str) -> None:
    text = rewritten(BRANCHES.replace("{other}", other))
    assert text.count("step():") == 1
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "step():" in line)
    assert inside in "".join(lines[at + 1 : at + 3]), text


def test_branches_that_log() -> None:
    text = BRANCHES.replace("{other}", "return (self.model(x) - y).mean()")
    call = "                    loss = self.eval_other(x, y)\n"
    text = rewritten(text.replace(call, f"{call}                    print(mode)\n"))
    assert text.count("step():") == 2
    assert (
        "                        loss = self.eval_other(x, y)\n                    print(mode)"
        in text
    )


SILENT = [
    # no model
    "def run(model, x):\n    return x * model.scale\n",
    "def run(model, x):\n    return torch.sigmoid(x)\n",
    "def run(model, x):\n    return torch.nn.MSELoss()(x, x)\n",
    # a model that nothing runs there
    "def run(model, x):\n    model.eval()\n    return x\n",
    # reads what it computes
    "def run(model, x):\n    return model(x).cpu()\n",
    "def run(model, x):\n    return model(x).mean().item()\n",
    # gradients of its own
    "def run(model, x):\n    out = model(x)\n    out.mean().backward()\n    return out\n",
    # a loop of turns, which is a graph each
    "def run(model, x):\n    for _ in range(50):\n        x = model(x)\n    return x\n",
    f"{RUN.replace('run', 'one')}\n\n"
    "def run(model, x):\n    return deep(model, x)\n\n\n"
    "def deep(model, x):\n    for _ in range(50):\n        with torch.no_grad():\n"
    "            x = one(model, x)\n    return x\n",
]


@pytest.mark.parametrize("callee", SILENT)
def test_other_callees_get_no_step(callee: str) -> None:
    assert "step():" not in rewritten(LOOP.format(callees=callee, call="run(model, x)"))


@pytest.mark.parametrize("end", ["with torch_xla.step():", "with shims.step():"])
def test_steps_of_a_callee_stay(end: str) -> None:
    module = end[5:].partition(".")[0]
    callee = f"import {module}\n\ndef run(model, x):\n    {end}\n        return model(x)\n"
    text = rewritten(LOOP.format(callees=callee, call="run(model, x)"))
    assert text.count("step():") == 1
    assert f"    {end}\n        return model(x)\n" in text


def test_loop_on_the_host_stays() -> None:
    text = LOOP.format(callees=RUN, call="run(model, x)").replace(".cuda()", ".cpu()")
    assert "step():" not in rewritten(text)


def test_loop_with_gradients_stays() -> None:
    text = LOOP.format(callees=RUN, call="run(model, x)").replace("@torch.no_grad()\n", "")
    assert "step():" not in rewritten(text)


TILED = """
import torch


@torch.no_grad()
def tiled(model, image, truth):
    total, losses = torch.zeros_like(image), []
    for part in image.split(2):
        out = model(part)
        losses.append((out - truth).abs().mean().item())
        total += out.sum()
    return total, sum(losses)


@torch.no_grad()
def evaluate(model, measure: torch.nn.Module, loader):
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        out, loss = tiled(model, x, y)
        error = measure(out, y)
        print(loss, error.item())
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_function_with_steps_of_its_own_is_in_no_block(style: Style) -> None:
    source = parse(TILED.encode(), Path("tiles.py"))
    result = rewrite_source(source, options=RewriteOptions(style=style))
    text = result.data.decode()
    assert text.count(".step():") == 2
    assert ".step():\n            out = model(part)\n            total += out.sum()\n" in text
    assert ".step():\n            error = measure(out, y)\n        print(" in text
    assert not {"evaluation-loop", "XLA201", "XLA206"} & {note.rule for note in result.findings}


ROLLOUT = """
import torch


class Pipeline:
    def __init__(self, net):
        self.net = net

    def inference_with_flags(self, x):
        flags = torch.randint(0, 4, (3,), device=x.device).tolist()
        return self.net(x) * flags[0]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)
        self.pipeline = Pipeline(self.net)

    def roll(self, x):
        {call}

    def loss(self, x):
        return self.roll(x).mean()


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(8, 4, 4).cuda():
    model.loss(x).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("return self.pipeline.inference_with_flags(x)", [10]),
        ("self.pipeline.inference_with_flags(x)\n        return self.net(x)", []),
    ],
)
def test_what_a_step_returns_is_no_evaluation_whatever_its_name(call: str, told: list[int]) -> None:
    source = parse(ROLLOUT.replace("{call}", call).encode(), Path("script.py"))
    found = rewrite_source(source).findings
    assert [note.line for note in found if note.rule == "XLA201"] == told


OF_A_MAPPING = """\
import torch


@torch.no_grad()
def look(model, layers, parts):
    model.cuda()
    handles = {}
    for name, layer in layers.items():

        def hook_of(key):
            def hook(module, inputs, output):
                handles[key] = model(inputs[0])

            return hook

        handles[name] = layer.register_forward_hook(hook_of(name))
    for name, x in parts.items():
        x = x.cuda()
        out = model(x)
        print(name, out.sum().item())
    for name, x in parts.items():
        out = handles[name] = model(x)
        print(name, out.sum().item())
"""


def test_keys_of_a_mapping_are_no_inputs_and_a_hook_that_is_defined_is_no_forward() -> None:
    done = rewrite_source(parse(OF_A_MAPPING.encode(), Path("look.py")))
    text = done.data.decode()
    assert "name.to(" not in text
    assert "name, x = " not in text
    assert text.count("with torch_xla.step():") == 2
    assert text.index("hook_of(name)") < text.index("with torch_xla.step():")
