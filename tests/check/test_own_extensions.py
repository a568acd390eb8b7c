"""Modules that a project compiles against torch, where its other files import them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

SETUP = """
    from setuptools import Extension, setup
    from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension


    def extension(name, module):
        return CUDAExtension(name=f"{module}.{name}", sources=[f"{name}.cu"])


    setup(
        ext_modules=[
            CUDAExtension("own_backend.fused", ["fused.cu"]),
            CppExtension(name="flat_ext", sources=["flat.cpp"]),
            extension(name="boxes_cuda", module="pkg.ops"),
            Extension("plain", ["plain.c"]),
        ],
        cmdclass={"build_ext": BuildExtension},
    )
"""
MODEL = """
    IMPORT
    import torch

    model = torch.nn.Linear(4, 4).cuda()
"""


def write(folder: Path, line: str) -> None:
    (folder / "kernels").mkdir()
    (folder / "kernels" / "setup.py").write_text(dedent(SETUP).lstrip())
    (folder / "pkg" / "ops").mkdir(parents=True)
    for package in ("pkg", "pkg/ops"):
        (folder / package / "__init__.py").write_text("")
    model = folder / "pkg" / "ops" / "model.py"
    model.write_text(dedent(MODEL).lstrip().replace("IMPORT", line))


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("import own_backend.fused", "error"),
        ("from own_backend import fused as f", "error"),
        ("from own_backend.fused import norm", "error"),
        ("import flat_ext", "error"),
        ("import importlib; ext = importlib.import_module('flat_ext')", "error"),
        ("from . import boxes_cuda", "error"),
        ("from .boxes_cuda import iou", "error"),
        ("from ..ops import boxes_cuda", "error"),
        ("from pkg.ops.boxes_cuda import iou", "error"),
        ("try: import flat_ext\nexcept ImportError: flat_ext = None", "info"),
    ],
)
def test_an_import_of_an_extension_of_the_project(tmp_path: Path, line: str, severity: str) -> None:
    write(tmp_path, line)
    findings = check_paths([tmp_path], Config()).findings
    reported = [(f.severity.value, f.line) for f in findings if f.path.name == "model.py"]
    assert (severity, 1) in [one for one in reported if one[1] == 1]


@pytest.mark.parametrize(
    "line", ["import own_backend", "import plain", "from . import boxes", "import fused"]
)
def test_other_imports(tmp_path: Path, line: str) -> None:
    write(tmp_path, line)
    findings = check_paths([tmp_path], Config()).findings
    assert not any(f.code == "XLA401" for f in findings if f.path.name == "model.py")


@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_rewrite_reports_it(tmp_path: Path, style: Style) -> None:
    write(tmp_path, "import own_backend.fused")
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    (model,) = (file for file in done.files if file.name.name == "model.py")
    assert ("XLA401", 1) in [(note.rule, note.line) for note in model.findings]
