"""The catalogue says what torch does: each name of torch.cuda is called, without a GPU."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from migrate.catalogue import catalogue
from migrate.catalogue.entry import HOMES, OnXla, names, public
from migrate.catalogue.torch_cuda import ELSEWHERE
from migrate.rewrite.left.codes import all_codes
from migrate.rewrite.rules import all_rules

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="measured without a GPU")

# What the calls need; the others take nothing.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "caching_allocator_alloc": (1,),
    "can_device_access_peer": (0, 0),
    "device": (0,),
    "device_of": (torch.ones(1),),
    "get_stream_from_external": (0,),
    "graph": (None,),
    "make_graphed_callables": (lambda x: x, (torch.ones(1),)),
    "manual_seed": (0,),
    "manual_seed_all": (0,),
    "set_device": (0,),
    "set_per_process_memory_fraction": (0.5,),
    "set_rng_state": (torch.zeros(16, dtype=torch.uint8),),
    "set_rng_state_all": ([],),
    "set_stream": (None,),
    "set_sync_debug_mode": (0,),
    "stream": (None,),
    "StreamContext": (None,),
    "ExternalStream": (0,),
}
# A handle of nothing where torch is built for CUDA; with a build for the CPU it raises.
OF_THE_BUILD = {"graph_pool_handle"}
# Not called: with an allocator it changes this process for good.
OF_THE_PROCESS = {"change_current_allocator"}
MEASURED = sorted(
    name
    for name in set(torch.cuda.__all__) - OF_THE_BUILD - OF_THE_PROCESS
    if f"torch.cuda.{name}" in catalogue.NAMES and callable(getattr(torch.cuda, name))
)


def answer(name: str) -> Any:
    """Return what `torch.cuda.NAME` answers, entered where it is a context, recorded where an event."""
    found = getattr(torch.cuda, name)(*ARGUMENTS.get(name, ()))
    if hasattr(found, "__enter__"):
        found.__enter__()
    return found.record() if name == "Event" else found


def raised_by(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what `call` answers, or what it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several names are deprecated
            return call(), None
    except Exception as error:
        return None, error


def expect_said(name: str, call: Callable[[], Any]) -> None:
    """Expect that the catalogue says of `name` what comes of `call`."""
    entry = catalogue.of(name)
    assert entry is not None
    found, raised = raised_by(call)
    assert "required positional argument" not in str(raised), f"{name}: {raised}: see ARGUMENTS"
    happens = "does not raise" if raised is None else f"raises {raised!r}"
    assert (entry.on_xla is OnXla.RAISES) == (raised is not None), f"{name} {happens}"
    if raised is None:
        assert entry.on_xla in (OnXla.NOTHING, OnXla.WRONG)
    if entry.on_xla is OnXla.WRONG:
        assert not found or "pynvml" in found  # 0, False or empty


@pytest.mark.parametrize("name", MEASURED)
def test_torch_does_what_the_catalogue_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])  # a seed waits for the GPU in it
    expect_said(f"torch.cuda.{name}", lambda: answer(name))


# Of torch.accelerator; the streams that it sets cannot be made.
ACCELERATOR = sorted(
    name
    for name in set(torch.accelerator.__all__) - {"set_stream", "current_accelerator"}
    if f"torch.accelerator.{name}" in catalogue.NAMES
)


@pytest.mark.parametrize("name", ACCELERATOR)
def test_the_accelerator_is_a_gpu(name: str) -> None:
    needs = (0,) if name.startswith(("set_device", "device_index")) else ()

    def call() -> Any:
        found = getattr(torch.accelerator, name)(*needs)
        return found.__enter__() if hasattr(found, "__enter__") else found

    expect_said(f"torch.accelerator.{name}", call)


def test_torch_cuda_memory_has_names_of_its_own() -> None:
    record = torch.cuda.memory._record_memory_history
    expect_said("torch.cuda.memory._record_memory_history", record)


def test_most_of_torch_cuda_was_measured() -> None:
    assert len(MEASURED) > 80


# Advice that is an expression, and its value on the CPU.
ADVISED = {
    "torch.cuda.get_device_name": "CPU",
    "torch.cuda.max_memory_allocated": 0,
    "torch.cuda.memory_allocated": 0,
}


@pytest.mark.xla
def test_expressions_that_are_advised_run_on_the_cpu() -> None:
    entries = [catalogue.NAMES[name] for name in ADVISED]
    advised = [entry.native.removesuffix(ELSEWHERE) for entry in entries]
    program = "import torch_xla, torch_xla.core.xla_model, torch_xla.runtime\n" + "".join(
        f"print(repr({expression}))\n" for expression in advised
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [*map(repr, ADVISED.values())], done.stderr


def test_an_entry_has_the_public_name() -> None:
    reported = [name for name, one in catalogue.NAMES.items() if one.on_xla is not OnXla.WORKS]
    offered = {name: public(name) for name in reported if public(name) != name}
    others = {name: other for name, other in offered.items() if _found(other) is not None}
    assert others == {}, f"nothing finds these entries; the catalogue looks for {others}"


def test_every_code_and_rule_of_the_catalogue_is_one() -> None:
    rules = {rule.name for rule in all_rules()}
    entries = catalogue.IMPORTS.values()
    assert {entry.code for entry in entries} - {*all_codes()} == {""}
    assert {entry.rule for entry in entries} - rules == {""}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("torch.cuda.random.manual_seed_all", "torch.cuda.manual_seed_all"),
        ("torch.cuda.memory._record_memory_history", "torch.cuda.memory._record_memory_history"),
        ("torch.cuda.amp.grad_scaler.GradScaler", "torch.cuda.amp.GradScaler"),
        ("torch.distributed.distributed_c10d.barrier", "torch.distributed.barrier"),
        ("torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.nn.SyncBatchNorm"),
        ("torch.cuda.nothing_of_the_kind", "torch.cuda"),
        ("torch.multiprocessing.spawn", "torch.multiprocessing.spawn"),
    ],
)
def test_a_name_is_known_by_where_it_lives_and_by_what_is_above_it(name: str, known: str) -> None:
    found = catalogue.of(name)
    assert found is not None
    assert found.name == known


@pytest.mark.parametrize(
    "name", ["torch.cudagraphs", "torch.jit.script.x", "numpy.save", "ray.init"]
)
def test_what_works_says_nothing_of_what_lies_below(name: str) -> None:
    assert catalogue.of(name) is None


def test_where_torch_keeps_a_name_it_is_the_same_thing() -> None:
    kept = 0
    for home, offers in HOMES.items():
        if home.startswith("torch_xla"):
            continue
        for entry in catalogue.NAMES.values():
            module, _, last = entry.name.rpartition(".")
            if module == offers and f"{home}.{last}" in names(entry):
                at_home = _found(f"{home}.{last}")
                if at_home is not None:
                    kept += 1
                    assert at_home is _found(entry.name), f"{home}.{last}"
    assert kept > 40


def _found(name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    # Once torch.compile has been imported, torch.manual_seed is a wrapper of itself.
    return inspect.unwrap(found) if callable(found) else found
