"""What reaches NumPy in half precision: followed from the region to the array (XLA870)."""

from __future__ import annotations

import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.rewrite.check_findings import check_and_mend, findings_of

HEAD = """
import contextlib
import functools

import numpy as np
import torch
from sklearn import metrics


"""


def found(script: str, code: str = "XLA870") -> dict[int, Severity]:
    """Return the severity of each reported line, counted from the first of `script`."""
    text = HEAD + textwrap.dedent(script).strip() + "\n"
    start = HEAD.count("\n")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(text)
        hits = findings_of([path], Config(select=(code,)))[1]
    return {hit.line - start: hit.severity for hit in hits}


REGIONS = [
    ("torch.cuda.amp.autocast()", True),
    ("torch.cuda.amp.autocast(enabled=args.amp)", True),
    ("torch.cuda.amp.autocast(dtype=torch.float16)", True),
    ("torch.cuda.amp.autocast(enabled=False)", False),
    ("torch.cuda.amp.autocast(dtype=torch.bfloat16)", False),
    ("torch.cuda.amp.autocast(dtype=torch.float32)", False),
    ("torch.cuda.amp.autocast(dtype=kind)", True),
    ("torch.autocast('cuda')", True),
    ("torch.autocast(device_type=x.device.type)", True),
    ("torch.autocast('cuda', torch.bfloat16)", False),
    ("torch.autocast('cpu')", False),
    ("torch.autocast('xla', dtype=torch.bfloat16)", False),
    ("region()", True),
    ("ready", True),
    ("typed()", False),
    ("partial(enabled=args.amp)", True),
    ("torch.no_grad(), torch.cuda.amp.autocast()", True),
    ("torch.no_grad()", False),
    ("contextlib.nullcontext()", False),
]


@pytest.mark.parametrize(("region", "reported"), REGIONS, ids=[region for region, _ in REGIONS])
def test_which_regions_are_half(region: str, reported: bool) -> None:
    script = f"""
    def predict(model, x, args):
        kind = torch.float16 if args.half else torch.float32
        region = torch.cuda.amp.autocast if args.amp else contextlib.nullcontext
        ready = torch.cuda.amp.autocast()
        typed = functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16)
        partial = functools.partial(torch.autocast, device_type="cuda")
        with {region}:
            y = model(x)
        return y.cpu().numpy()
    """
    assert bool(found(script)) is reported


VALUES = [
    ("y", True),
    ("y.detach().cpu()", True),
    ("y[:, 0].sigmoid()", True),
    ("torch.softmax(y, -1)", True),  # outside of the region it keeps the type
    ("-y * 2", True),
    ("torch.cat([y, y])", True),
    ("y.to('cpu')", True),
    ("y.to('cpu', non_blocking=True)", True),
    ("y.max()", True),
    ("y.max(-1)[0]", True),
    ("y.topk(5).values", True),
    ("torch.max(y, -1)[1]", False),
    ("y.topk(5).indices", False),
    ("y.float()", False),
    ("y.to(torch.float32)", False),
    ("y.to('cpu', torch.float32)", False),
    ("y.to(target)", False),
    ("y.argmax(-1)", False),
    ("(y > 0)", False),
    ("y.mean(dtype=torch.float32)", False),
    ("torch.cat([y, y.float()])", False),
    ("(y + target)", False),  # float32 decides
    ("target", False),
    ("wide", False),
    ("loss", False),
    ("nothing.known", False),
]


@pytest.mark.parametrize(("value", "reported"), VALUES, ids=[value for value, _ in VALUES])
def test_which_values_are_half(value: str, reported: bool) -> None:
    script = f"""
    def predict(model, x, target, nothing):
        target = target.cuda()
        with torch.cuda.amp.autocast():
            y = model(x)
            wide = y.softmax(-1)
            loss = torch.nn.functional.mse_loss(y, target)
        return ({value}).numpy()
    """
    assert bool(found(script)) is reported


def test_values_are_followed_through_functions_and_containers() -> None:
    assert found(
        """
        def embed(model, x):
            with torch.cuda.amp.autocast():
                y = model(x)
            return y, y.argmax(-1)


        @torch.cuda.amp.autocast()
        def project(x, weight):
            return x @ weight


        def to_array(x):
            return x.detach().cpu().numpy()


        class Runner:
            def __init__(self):
                self.rows = []

            def run(self, model, x, weight):
                y, labels = embed(model, x)
                self.rows.extend([y.cpu()])
                everything = {"y": y, "labels": labels}
                print(to_array(y), to_array(labels), labels.cpu().numpy())
                print(everything["labels"].cpu().numpy())
                print(everything["y"].cpu().numpy())
                return project(x, weight).cpu().numpy()

            def end(self):
                return torch.cat(self.rows).numpy(), metrics.roc_auc_score(None, self.rows)
        """
    ) == {
        13: Severity.WARNING,  # for one caller it is, for another it is not
        26: Severity.ERROR,
        27: Severity.ERROR,
        30: Severity.ERROR,
    }


def test_a_module_gives_what_its_forward_returns() -> None:
    assert found(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
                self.head = torch.nn.Linear(8, 2)

            def features(self, x):
                return self.body(x)

            def forward(self, x):
                return self.head(self.features(x)).softmax(-1)


        def run(x):
            net = Net().cuda()
            with torch.cuda.amp.autocast():
                shares = net(x)
                raw = net.head(x)
            print(raw.cpu().numpy())
            return shares.cpu().numpy()
        """
    ) == {19: Severity.ERROR}


def test_a_layer_of_the_script_is_followed() -> None:
    assert found(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head = torch.nn.Linear(8, 2)

            @torch.cuda.amp.autocast()
            def forward(self, x):
                return self.head(x), self.head(x).float()


        def run(x):
            first, second = Net().cuda()(x)
            print(second.cpu().numpy())
            return first.cpu().numpy()
        """
    ) == {14: Severity.ERROR}


def test_models_and_functions_of_other_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        textwrap.dedent(
            """
            import torch


            class Narrow(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.head = torch.nn.Linear(8, 2)

                def forward(self, x):
                    return self.scores(x)

                def scores(self, x):
                    return self.head(x)


            class Wide(Narrow):
                def forward(self, x):
                    return self.head(x).float()


            @torch.no_grad()
            def embed(model, x):
                with torch.cuda.amp.autocast():
                    return model(x)
            """
        )
    )
    (tmp_path / "run.py").write_text(
        textwrap.dedent(
            """
            import torch

            from net import Narrow, Wide, embed


            def run(x):
                narrow, wide = Narrow().cuda(), Wide().cuda()
                with torch.cuda.amp.autocast():
                    first = narrow(x)
                    second = wide(x)
                print(second.cpu().numpy())
                print(first.cpu().numpy())
                print(embed(narrow, x).cpu().numpy())
            """
        )
    )
    checked = check_and_mend([tmp_path], Config(select=("XLA870",)))
    assert [(one.path.name, one.line) for one in checked.findings] == [
        ("run.py", 13),
        ("run.py", 14),
    ]


def test_halves_that_are_saved_compute_nothing() -> None:
    script = """
    def small(model, path):
        weights = {}
        for key, value in model.state_dict().items():
            weights[key] = value.half()
        torch.save(weights, path)

    def run(model, x):
        return model(x.half())
    """
    assert found(script, "XLA502") == {4: Severity.INFO, 8: Severity.WARNING}
