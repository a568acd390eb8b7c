"""The TPU slices that Google sells, by the names that `gcloud` takes: chips, hosts, zones, software versions.

The figures are those of Google's pages, the link's bandwidth per direction; where a page gives one for both
directions it is halved. What a program may use of the HBM is what the compiler itself names when a program
is too big (libtpu 0.0.42, `RESOURCE_EXHAUSTED`): a little less than the chip has.

Zones: stored copies of cloud.google.com/tpu/docs/regions-zones, read 2026-11-28. The zones of v5p and v6e
outside of North America were not in them, and are those of the grants in `migrate/launch/trc.py`, of jobman's
configurations, or not confirmed (v5p in europe-west4-b, v6e in southamerica-west1-a). Software versions:
docs.cloud.google.com/tpu/docs/runtimes, and the labels of GKE:
cloud.google.com/kubernetes-engine/docs/how-to/tpus. All read 2026-11-28.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field

from migrate.errors import MigrateError

_GB, _GIB, _TERA = 1e9, 2**30, 1e12
_CLOUD = "https://docs.cloud.google.com/tpu/docs"


class UnknownProductError(MigrateError):
    """There is no such TPU slice.

    Cause: a name that Google does not sell, or a size that the generation does not come in.

    Remedy: one of the names that the message gives.
    """


@dataclass(frozen=True)
class Generation:
    """Capabilities of one TPU generation. A device is what XLA sees: a chip or one of its cores.

    Attributes:
        name: Google's name ("v5e").
        names: what its slices are called, before the number.
        topology: how libtpu spells it.
        flops: bfloat16 operations a second of one device, at most.
        bandwidth: bytes a second between a device and its HBM.
        link: bytes a second that a chip sends over all of its links, one direction.
        hbm: bytes of HBM that a program may use, per device.
        mxu: the sides of its matrix units.
        devices: number of devices that XLA sees in one chip.
        counted: how many of what the names count a chip has (v4-8 are four chips of two cores).
        shapes: slices by their number of chips.
        hosts: chips a host.
        source: source of the figures.
        megacore: whether the two cores of a chip are one device.
        zones: the zones that sell the generation.
        runtime: software version of a TPU VM; empty where the TPU VM API does not create the generation.
        label: value of GKE's label `cloud.google.com/gke-tpu-accelerator`; empty where GKE has none.
        largest_host: most chips of a slice that is one host.
        only: zone → numbers of chips, for zones that sell some slices only.
    """

    name: str
    names: tuple[str, ...]
    topology: str
    flops: float
    bandwidth: float
    link: float
    hbm: float
    mxu: int
    devices: int
    counted: int
    shapes: dict[int, tuple[int, ...]]
    hosts: int
    source: str
    megacore: bool = False
    zones: tuple[str, ...] = ()
    runtime: str = ""
    label: str = ""
    largest_host: int = 4
    only: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _grids(*shapes: str) -> dict[int, tuple[int, ...]]:
    sides = [tuple(int(side) for side in shape.split("x")) for shape in shapes]
    return {math.prod(shape): shape for shape in sides}


_FLAT = _grids("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = _grids(
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x4x12", "4x8x8", "4x8x12"),
    *("8x8x8", "8x8x12", "8x8x16", "8x12x16", "8x16x16", "12x16x16", "16x16x16"),
)
GENERATIONS = (
    Generation(
        "v2", ("v2",), "v2", 45 * _TERA / 2, 700 * _GB / 2, 248 * _GB, 7.48 * _GIB, 128, 2, 2,
        _grids("2x2", "4x4", "8x8", "8x16", "16x16"), 4, f"{_CLOUD}/v2; doi 10.1145/3360307",
        zones=("us-central1-a", "us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c"),
        runtime="tpu-ubuntu2204-base",
        only={
            "us-central1-a": (16, 64, 128, 256), "us-central1-b": (4,), "us-central1-c": (4,),
            "asia-east1-c": (4,),
        },
    ),
    Generation(
        "v3", ("v3",), "v3", 123 * _TERA / 2, 900 * _GB / 2, 328 * _GB, 15.48 * _GIB, 128, 2, 2,
        _grids("2x2", "4x4", "8x8", "8x16", "16x16", "16x32", "32x32"), 4,
        f"{_CLOUD}/v3; doi 10.1145/3360307",
        zones=("us-central1-a", "us-central1-b", "europe-west4-a"),
        runtime="tpu-ubuntu2204-base", label="tpu-v3-slice",
        only={"us-central1-a": (4,), "us-central1-b": (4,)},
    ),
    Generation(
        "v4", ("v4",), "v4", 275 * _TERA, 1200 * _GB, 300 * _GB, 30.75 * _GIB, 128, 1, 2, _CUBES, 4,
        f"{_CLOUD}/v4; arXiv 2304.01433", megacore=True,
        zones=("us-central2-b",), runtime="tpu-ubuntu2204-base", label="tpu-v4-podslice",
    ),
    Generation(
        "v5e", ("v5litepod", "v5e"), "v5e", 197 * _TERA, 819 * _GB, 200 * _GB, 15.75 * _GIB, 128, 1, 1,
        _FLAT, 4, f"{_CLOUD}/v5e",
        zones=("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"),
        runtime="v2-alpha-tpuv5-lite", label="tpu-v5-lite-podslice", largest_host=8,
    ),
    Generation(
        "v5p", ("v5p",), "v5p", 459 * _TERA, 2765 * _GB, 600 * _GB, 95.74 * _GIB, 128, 1, 2, _CUBES, 4,
        f"{_CLOUD}/v5p",
        zones=("us-central1-a", "us-east5-a", "europe-west4-b"),
        runtime="v2-alpha-tpuv5", label="tpu-v5p-slice",
    ),
    Generation(
        "v6e", ("v6e",), "v6e", 918 * _TERA, 1638 * _GB, 400 * _GB, 31.25 * _GIB, 256, 1, 1, _FLAT, 4,
        f"{_CLOUD}/v6e",
        zones=(
            "us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "us-south1-ai1b", "europe-west4-a",
            "asia-northeast1-b", "southamerica-west1-a",
        ),
        runtime="v2-alpha-tpuv6e", label="tpu-v6e-slice", largest_host=8,
    ),
    Generation(
        "tpu7x", ("tpu7x",), "tpu7x", 2307 * _TERA / 2, 7380 * _GB / 2, 600 * _GB, 94.75 * _GIB, 256, 2, 2,
        _CUBES, 4, f"{_CLOUD}/tpu7x",
        zones=("us-central1-c", "us-central1-ai1a"), label="tpu7x",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """A slice.

    Attributes:
        name: product name ("v5litepod-8" is "v5e-8" here).
        generation: what its devices can do.
        chips, devices: how many.
        shape: arrangement of the chips.
    """

    name: str
    generation: Generation
    chips: int
    shape: tuple[int, ...]

    @property
    def devices(self) -> int:
        """Number of devices that XLA sees."""
        return self.chips * self.generation.devices

    @property
    def hosts(self) -> int:
        """Virtual machines of the slice."""
        if self.chips <= self.generation.largest_host:
            return 1
        return self.chips // self.generation.hosts

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones that sell the slice, as far as the table says."""
        only = self.generation.only
        return tuple(
            zone for zone in self.generation.zones if zone not in only or self.chips in only[zone]
        )

    @property
    def chips_per_host(self) -> int:
        """Chips of each virtual machine."""
        return self.chips // self.hosts

    @property
    def cloud_name(self) -> str:
        """Name in commands of gcloud: "v5litepod-8" for "v5e-8"."""
        return f"{self.generation.names[0]}-{self.chips * self.generation.counted}"

    @property
    def topology(self) -> str:
        """Topology in libtpu's spelling ("v5e:2x4")."""
        return f"{self.generation.topology}:{'x'.join(map(str, self.shape))}"

    @property
    def options(self) -> dict[str, object]:
        """Further options for libtpu."""
        options: dict[str, object] = {}
        if self.chips < self.generation.hosts:
            options["chips_per_host_bounds"] = (1, 1, 1)  # a host with one chip only
        if self.generation.megacore:
            options["chip_config_name"] = "megacore"
        return options


def product_named(name: str) -> Slice:
    """Return the slice that `gcloud` calls so; "v5e-8" and "v5litepod-8" are one.

    Raises:
        UnknownProductError: nobody sells it.
    """
    match = re.fullmatch(r"([a-z]+\d\w*?|v\d\w*?|tpu7x)-(\d+)", name.lower())
    for generation in GENERATIONS:
        if match and match[1] in generation.names:
            number = int(match[2])
            chips, rest = divmod(number, generation.counted)
            if not rest and chips in generation.shapes:
                called = f"{generation.name}-{number}"
                return Slice(called, generation, chips, generation.shapes[chips])
    near = difflib.get_close_matches(name.lower(), [product.name for product in products()], 4)
    generations = ", ".join(generation.name for generation in GENERATIONS)
    raise UnknownProductError(
        f"{name}: no such TPU slice",
        f"near: {', '.join(near)}"
        if near
        else f"name a generation of TPUs and a size, such as v5e-8; generations: {generations}",
    )


def products() -> list[Slice]:
    """All slices, the smallest of each generation first."""
    return [
        Slice(
            f"{generation.name}-{chips * generation.counted}",
            generation,
            chips,
            generation.shapes[chips],
        )
        for generation in GENERATIONS
        for chips in sorted(generation.shapes)
    ]


def smallest() -> list[Slice]:
    """The smallest slice of one host with all its chips, of each generation: what `--tpu all` means."""
    products = []
    for generation in GENERATIONS:
        chips = min(chips for chips in generation.shapes if chips >= generation.hosts)
        products.append(product_named(f"{generation.name}-{chips * generation.counted}"))
    return products


def products_named(names: str) -> list[Slice]:
    """The slices of "v5e-8,v6e-8"; the smallest of each generation for "all".

    Raises:
        UnknownProductError: nobody sells one of them, or none is named.
    """
    words = [name.strip() for name in names.split(",") if name.strip()]
    if not words:
        raise UnknownProductError("no TPU slice is given", "use --tpu v5e-8,v6e-8 or --tpu all")
    return smallest() if words == ["all"] else [product_named(name) for name in words]
