"""No test looks for a TPU, and none depends on what the machine's environment says."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from importlib.util import find_spec

import pytest

from migrate.cli import progress
from migrate.quick_xla import compiling_quickly
from shims._simulated_tpu import versions
from tests.waiting import LIMIT

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PJRT_DEVICE"] = "CPU"
os.environ.pop("XLA_USE_BF16", None)
os.environ.pop("XLA_DOWNCAST_BF16", None)
# gcsfs asks by gRPC what kind of bucket it has, which an emulated one does not answer; read on its import.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
# XLA compiles most programs of the tests for one or two calls.
os.environ |= compiling_quickly(os.environ)
# A benchmark that a test runs appends nothing to the figures.
os.environ["BENCHMARK_HISTORY"] = "off"
# Unbuffered, print() writes its arguments one by one, and those of two ranks mix in one line.
os.environ.pop("PYTHONUNBUFFERED", None)
# On a slow machine a command would say that it still runs, where a test asks for one line.
progress._FIRST_SECONDS = LIMIT

# Each worker that runs a test of such a folder starts a process of its own, which its tests share.
ONE_WORKER = ("tests/fit/", "tests/report/")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep a folder of `ONE_WORKER` together where the tests of each file are (`--dist loadfile`)."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class _WithFolders(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            folder = next(filter(nodeid.startswith, ONE_WORKER), "")
            return folder or super()._split_scope(nodeid)

    return _WithFolders(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest until all tests are imported: it looks again and again at what stays.

    After that it looks less often than Python's default, which takes 6 % of the time of all tests.
    """
    gc.disable()
    try:
        result = yield
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse the file that imports torch_xla: that replaces layers of torch for all tests after it."""
    was_there = "torch_xla" in sys.modules
    report = yield
    if not was_there and "torch_xla" in sys.modules:
        report.outcome, report.result = "failed", []
        report.longrepr = (
            f"{collector.nodeid} imports torch_xla: import it in the test's own process"
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail the test that imports torch_xla: that replaces layers of torch for all tests after it."""
    was_there = "torch_xla" in sys.modules
    result = yield
    if not was_there and "torch_xla" in sys.modules:
        pytest.fail("the test has imported torch_xla into its process: run it in one of its own")
    return result


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of `long_cases` as `long`; skip what is marked `xla` or `torch_tpu` where that is missing.

    Each of the two goes with its own torch.
    """
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            for marker in item.iter_markers("long_cases"):
                if item.callspec.id in marker.args:
                    item.add_marker(pytest.mark.long)
    missing = {}
    if find_spec("torch_xla") is None:
        missing["xla"] = "torch_xla is not installed"
    # Wrong versions of these are no reason: a skipped test would hide them.
    for package in (versions.PLUGIN, "torch_tpu"):
        if versions.installed(package) is None:
            missing["torch_tpu"] = f"{package} is not installed"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
