"""The usual grants of the TPU Research Cloud: chips that are free, by zone.

Source: the e-mail of the program as its receivers quote it in public repositories (eight of them name the
same six lines), read 2026-11-28. A grant may differ: the e-mail decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from migrate.fit.products import Slice
from migrate.launch.errors import JobError


@dataclass(frozen=True)
class Grant:
    """Chips of one generation in one zone.

    Attributes:
        generation: name of the generation.
        zone: the zone.
        chips: how many.
        spot: whether they may be taken away at any time.
    """

    generation: str
    zone: str
    chips: int
    spot: bool

    def __str__(self) -> str:
        kind = "spot" if self.spot else "on-demand"
        return f"{self.chips} {kind} {self.generation} chips in {self.zone}"


GRANTS = (
    Grant("v4", "us-central2-b", 32, spot=False),
    Grant("v4", "us-central2-b", 32, spot=True),
    Grant("v5e", "us-central1-a", 64, spot=True),
    Grant("v5e", "europe-west4-b", 64, spot=True),
    Grant("v6e", "us-east1-d", 64, spot=True),
    Grant("v6e", "europe-west4-a", 64, spot=True),
)
FREE = "the TPU chips of the grant, in its zone and of its kind (spot or on-demand)"
NOT_FREE = (
    "buckets and disks, traffic out of the region, CPU machines and the GKE cluster, "
    "and any TPU in another zone or of the other kind"
)


def grant_for(product: Slice, zone: str | None, spot: bool) -> Grant:
    """Return the grant that covers a slice.

    Args:
        product: the slice.
        zone: the zone; None: the first with a grant.
        spot: whether spot chips were asked for; without it, on-demand chips come first.

    Raises:
        JobError: no grant covers the slice there.
    """
    same = [grant for grant in GRANTS if grant.generation == product.generation.name]
    if not same:
        raise JobError(
            f"--trc: no usual grant has {product.generation.name}",
            f"usual grants: {'; '.join(map(str, GRANTS))}",
        )
    places = [grant for grant in same if zone in (None, grant.zone)]
    if not places:
        raise JobError(
            f"--trc: no usual grant has {product.generation.name} in {zone}; it would be billed",
            f"usual grants: {'; '.join(map(str, same))}",
        )
    kinds = [grant for grant in places if grant.spot or not spot]
    large = [grant for grant in kinds if grant.chips >= product.chips]
    if not large:
        raise JobError(
            f"--trc: {product.name} has {product.chips} chips, the grant has {places[0].chips}",
            f"use at most {product.generation.name} with {places[0].chips} chips",
        )
    return large[0]
