"""What shims answer and refuse of torch.cuda is what the catalogue of `migrate` knows of it."""

from __future__ import annotations

import pytest
import torch

from migrate.catalogue import catalogue
from shims.errors import DeviceNotAnsweredError
from shims.patches import assemble, cuda, rng
from shims.patches.devices import Devices, HostPlacement
from shims.patches.ranks import distributed

DEVICES = Devices(2, HostPlacement())
ANSWERED = [
    item
    for item in assemble.all_patches(DEVICES, rng.HostGenerators(DEVICES), lambda: None)
    if item.name.startswith(("torch.cuda.", "torch.accelerator."))
    and not item.attribute.startswith("_")
]
REFUSED = list(
    cuda.refusals({one.attribute for one in ANSWERED if one.name.startswith("torch.cuda.")})
)


def test_the_catalogue_knows_what_shims_answer() -> None:
    own = {"torch.cuda", "torch.accelerator"}
    unknown = []
    for one in ANSWERED:
        entry = catalogue.of(one.name)
        assert entry is not None, one.name
        if entry.name in own:
            unknown.append(one.name)
    assert unknown == []
    assert len(ANSWERED) > 60


@pytest.mark.parametrize("name", [one.name for one in REFUSED])
def test_a_refusal_names_the_rule_that_the_catalogue_names(name: str) -> None:
    (refused,) = (one for one in REFUSED if one.name == name)
    entry = catalogue.of(name)
    assert entry is not None
    with pytest.raises(DeviceNotAnsweredError) as raised:
        refused.replacement()
    assert raised.value.rule == entry.rule, (
        f"_RULES of shims/patches/cuda.py gives {name} {raised.value.rule!r}, the catalogue {entry.rule!r}"
    )
    assert raised.value.remedy


def test_what_the_catalogue_knows_of_torch_cuda_shims_answer_or_refuse() -> None:
    spoken = {one.name for one in (*ANSWERED, *REFUSED)}
    unspoken = {
        name
        for name in catalogue.NAMES
        if name.startswith("torch.cuda.")
        and name.count(".") == 2
        and callable(getattr(torch.cuda, name.rpartition(".")[2], None))
        and name not in spoken
        and name.rpartition(".")[2] not in cuda._UNTOUCHED
    }
    assert unspoken == set()


def test_shims_and_the_catalogue_name_the_same_collectives_of_objects() -> None:
    known = {name for name, entry in catalogue.NAMES.items() if entry.code == "XLA811"}
    assert {f"torch.distributed.{name}" for name in distributed._OBJECT_COLLECTIVES} == known


def test_a_class_that_is_refused_stays_a_class() -> None:
    """Annotations of libraries name it: `torch.cuda.CUDAGraph | None`."""
    replacement = cuda._refusing("CUDAGraph")
    assert isinstance(replacement, type)
    with pytest.raises(DeviceNotAnsweredError):
        replacement()
