"""What is said of the `except` that the import of a CUDA library goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.syntax.source import parse


def finding(script: str) -> tuple[int, Severity]:
    """Return the line of the handler that the report names, and the severity of the import."""
    source = parse(script.encode(), Path("script.py"))
    (hit,) = check_source(source, Config(select=("XLA410",)))
    return int(hit.message.rpartition(" ")[2]), hit.severity


@pytest.mark.parametrize(
    "body",
    [
        'raise ImportError("Please install it")',
        "raise",
        "print('no')\n    raise",
        "sys.exit(1)",
        "if sys.argv:\n        raise\n    else:\n        sys.exit(1)",
        "with open('log'):\n        raise",
    ],
)
def test_a_handler_that_raises_or_exits_ends_the_script(body: str) -> None:
    script = f"import sys\ntry:\n    import xformers.ops\nexcept ImportError:\n    {body}\n"
    assert finding(script) == (4, Severity.ERROR)


@pytest.mark.parametrize(
    "body",
    [
        "xformers = None",
        "if sys.argv:\n        raise\n    xformers = None",
        "def fail():\n        raise ImportError",
        "for one in sys.argv:\n        raise",
    ],
)
def test_a_handler_that_may_go_on_is_information(body: str) -> None:
    script = f"import sys\ntry:\n    import xformers.ops\nexcept ImportError:\n    {body}\n"
    assert finding(script) == (4, Severity.INFO)


def test_what_a_handler_raises_goes_to_the_try_around_it() -> None:
    inner = (
        "    try:\n        import xformers.ops\n    except ImportError as error:\n        raise\n"
    )
    script = f"try:\n{inner}except Exception:\n    xformers = None\n"
    assert finding(script) == (6, Severity.INFO)


def test_the_next_handler_of_the_same_try_is_not_met() -> None:
    handlers = "except ImportError:\n    raise\nexcept Exception:\n    xformers = None\n"
    assert finding(f"try:\n    import xformers.ops\n{handlers}") == (3, Severity.ERROR)


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ("raise", "on a TPU the script ends there, by the `except` of line 3"),
        ("xformers = None", "on a TPU the script continues without it, by the `except` of line 3"),
    ],
)
def test_the_words(body: str, end: str) -> None:
    script = f"try:\n    import xformers.ops\nexcept ImportError:\n    {body}\n"
    (hit,) = check_source(parse(script.encode(), Path("script.py")), Config(select=("XLA410",)))
    assert hit.message.endswith(end)


@pytest.mark.parametrize("module", ["knn_cuda", "simple_knn._C", "iou3d_nms_cuda", "raymarching"])
def test_kernels_for_points_and_rays_need_cuda(module: str) -> None:
    source = parse(f"import torch\nimport {module} as kernels\n".encode(), Path("script.py"))
    (hit,) = check_source(source, Config(select=("XLA410",)))
    assert hit.line == 2
