"""A Linear in inference mode raises on XLA: evaluations use no_grad instead."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse
from tests.waiting import LIMIT

MAIN = """
import torch
from torch import nn
from evaluation import evaluate

model = nn.Linear(3, 2).cuda()
print(evaluate(model, [torch.ones(1, 3)], "cuda"))
"""
EVALUATION = """
import torch


@torch.inference_mode()
def evaluate(model, loader, device):
    return sum(model(x.to(device)).sum().item() for x in loader)
"""
FORMS = {
    "block": ("with torch.inference_mode():\n    pass\n", "with torch.no_grad():\n    pass\n"),
    "two": (
        "with torch.inference_mode(True), open(device):\n    pass\n",
        "with torch.no_grad(), open(device):\n    pass\n",
    ),
    "decorator": ("@torch.inference_mode\ndef f(): ...\n", "@torch.no_grad\ndef f(): ...\n"),
    "flag": (
        "with torch.inference_mode(device.frozen):\n    pass\n",
        "with torch.set_grad_enabled(not device.frozen):\n    pass\n",
    ),
    "value": ("evaluating = torch.inference_mode\n", "evaluating = torch.no_grad\n"),
    "choice": (
        "evaluating = torch.inference_mode if new else torch.no_grad\n",
        "evaluating = torch.no_grad\n",
    ),
}


# In a process of its own: torch_xla changes what torch's recurrent layers run.
RAISES = """
import torch
import torch_xla

model = torch.nn.Linear(3, 2).to("xla")
with torch.inference_mode():
    try:
        model(torch.ones(1, 3).to("xla"))
    except RuntimeError as error:
        assert "version_counter" in str(error)
    else:
        raise AssertionError("a Linear runs in inference mode")
with torch.no_grad():
    assert model(torch.ones(1, 3).to("xla")).shape == (1, 2)
torch_xla.sync()
"""


@pytest.mark.xla
@pytest.mark.long
def test_torch_xla_still_raises_in_inference_mode() -> None:
    command = [sys.executable, "-c", RAISES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, style: Style) -> None:
    before, after = FORMS[form]
    head = "import torch\n\ndevice = torch.device('cuda')\n"
    source = parse((head + before).encode(), Path("a.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    assert done.data.decode().endswith(after)


@pytest.mark.parametrize("style", ["native", "portable"])
def test_an_evaluation_in_a_file_of_its_own(tmp_path: Path, style: Style) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "evaluation.py").write_text(EVALUATION)
    (tmp_path / "report.py").write_text(EVALUATION)  # nobody's
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style))
    texts = {str(file.name): file.after.decode() for file in done.files}
    assert "@torch.no_grad()" in texts["evaluation.py"]
    assert "@torch.inference_mode()" in texts.get("report.py", EVALUATION)


def test_a_name_of_its_own(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        from torch import inference_mode


        @inference_mode()
        def evaluate(model, x):
            return model(x.cuda())
        """
    )
    path = tmp_path / "a.py"
    path.write_text(script)
    done = rewrite_source(parse(script.encode(), path))
    assert b"inference_mode" not in done.data
    assert b"@torch.no_grad()" in done.data
    codes = [hit.code for hit in findings_of([path], Config())[1]]
    assert codes.count("XLA836") == 1
