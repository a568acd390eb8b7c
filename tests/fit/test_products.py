"""The slices that Google sells, by their names."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from migrate.fit.products import (
    GENERATIONS,
    UnknownProductError,
    product_named,
    products,
    smallest,
)


@pytest.mark.parametrize(
    ("name", "topology", "devices", "chips"),
    [
        ("v5e-8", "v5e:2x4", 8, 8),
        ("v5litepod-16", "v5e:4x4", 16, 16),
        ("V6E-256", "v6e:16x16", 256, 256),
        ("v4-8", "v4:2x2x1", 4, 4),
        ("v3-8", "v3:2x2", 8, 4),
        ("v5p-128", "v5p:4x4x4", 64, 64),
        ("tpu7x-8", "tpu7x:2x2x1", 8, 4),
        ("v5e-1", "v5e:1x1", 1, 1),
    ],
)
def test_a_name_of_gcloud(name: str, topology: str, devices: int, chips: int) -> None:
    found = product_named(name)
    assert (found.topology, found.devices, found.chips) == (topology, devices, chips)


@pytest.mark.parametrize("name", ["v5e-9", "v7-8", "v4-7", "v6e:16x32", "v5e"])
def test_what_nobody_sells_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownProductError, match=r"no such TPU slice; near: (v|tpu7x)"):
        product_named(name)


@pytest.mark.parametrize("name", ["h100", "h100-8", "a100", ""])
def test_what_is_near_to_no_slice_is_refused_with_the_generations(name: str) -> None:
    with pytest.raises(UnknownProductError, match=r"such as v5e-8; generations: v2, .*, tpu7x"):
        product_named(name)


def test_each_name_leads_to_its_slice_and_each_generation_has_one_for_all() -> None:
    assert [product_named(one.name) for one in products()] == products()
    assert [one.generation for one in smallest()] == list(GENERATIONS)
    assert all(one.chips >= one.generation.hosts for one in smallest())


@pytest.mark.long
@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_knows_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TPU_SKIP_MDS_QUERY", "1"), ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")):
        monkeypatch.setenv(name, value)
    from jax.experimental import topologies

    for one in products():
        found = topologies.get_topology_desc(one.topology, platform="tpu", **one.options)
        assert len(found.devices) == one.devices, one.name
