"""Where a bucket lies, and where this machine: between regions each byte costs, and comes slowly.

Asked on Google's machines only, whose metadata server tells their zone, and of Google's buckets, which tell
their location to whoever may see that; who may not, or is elsewhere, hears nothing.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from converters.checkpoint.source import Source
from converters.errors import ConversionError
from converters.remote.buckets import BucketStore, called, filesystem
from converters.remote.retries import TemporaryError
from converters.remote.store import StoreSource

# What a virtual machine of Google's says it is.
_PRODUCT = Path("/sys/class/dmi/id/product_name")
_METADATA_HOST = "GCE_METADATA_HOST"  # as Google's own clients read it
_FLAVOR = {"Metadata-Flavor": "Google"}
_SECONDS = 2.0
# https://cloud.google.com/storage/docs/locations
_PAIRS = {
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "NAM4": ("us-central1", "us-east1"),
}
_CONTINENTS = {"ASIA": "asia-", "EU": "europe-", "US": "us-"}


@dataclass(frozen=True)
class Location:
    """Where a bucket lies.

    Attributes:
        name: as the bucket says it: a region, a pair of regions, a continent.
        regions: those of a pair that was chosen by hand.
    """

    name: str
    regions: tuple[str, ...] = ()

    def holds(self, region: str) -> bool:
        """Whether a region lies in it."""
        name = self.name.upper()
        if not self.regions and name in _CONTINENTS:
            return region.startswith(_CONTINENTS[name])
        regions = self.regions or _PAIRS.get(name, (name,))
        return region.lower() in {one.lower() for one in regions}

    def __str__(self) -> str:
        return "+".join(self.regions) or self.name


def is_on_google(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine is one of Google's, or is told where the metadata server of one is."""
    if environment.get(_METADATA_HOST):
        return True
    try:
        return _PRODUCT.read_text().startswith("Google")
    except OSError:
        return False


def zone_of_machine(environment: Mapping[str, str] = os.environ) -> str:
    """The zone of this machine, "us-central1-a", as the metadata server tells; "" if it is not known."""
    if not is_on_google(environment):
        return ""
    host = environment.get(_METADATA_HOST) or "metadata.google.internal"
    return _zone(host)


@cache
def _zone(host: str) -> str:
    connection = http.client.HTTPConnection(host, timeout=_SECONDS)
    try:
        connection.request("GET", "/computeMetadata/v1/instance/zone", headers=_FLAVOR)
        answer = connection.getresponse()
        text = answer.read(1000).decode("ascii", "replace").strip()
        if answer.status != 200 or answer.headers.get("Metadata-Flavor") != "Google":
            return ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    zone = text.rpartition("/")[2]
    return zone if zone.replace("-", "").isalnum() else ""


def region_of(zone: str) -> str:
    """The region of a zone: "us-central1" of "us-central1-a"."""
    return zone.rpartition("-")[0]


def location_of(place: Source) -> Location | None:
    """Where the bucket of a place lies; None where that is not known.

    Raises:
        ConversionError, FileNotFoundError, TemporaryError: it cannot be asked.
    """
    store = _bucket_of(place)
    if store is None:
        return None
    bucket = store.root.partition("/")[0]
    fs = filesystem(store.protocol, store.url, place)
    told: Any = called(place, lambda: fs.call("GET", f"b/{bucket}", json_out=True))
    if not isinstance(told, dict) or "location" not in told:
        return None
    placed = told.get("customPlacementConfig")
    chosen = placed.get("dataLocations") if isinstance(placed, dict) else None
    return Location(str(told["location"]), tuple(map(str, chosen or ())))


def _bucket_of(place: Source) -> BucketStore | None:
    store = place.store if isinstance(place, StoreSource) else None
    is_google = isinstance(store, BucketStore) and store.protocol in ("gs", "gcs")
    return store if isinstance(store, BucketStore) and is_google else None


def elsewhere(place: Source) -> str:
    """A line, where the bucket of a place lies in another region than this machine; else "".

    It costs a question, on Google's machines only, and fails for no reason.
    """
    zone = "" if _bucket_of(place) is None else zone_of_machine()
    if not zone:
        return ""
    try:
        location = location_of(place)
    except (ConversionError, TemporaryError, OSError):
        return ""
    if location is None or location.holds(region_of(zone)):
        return ""
    return (
        f"the bucket of {place} lies in {location}, this machine in {zone}: what is moved between regions "
        "costs, and comes slower"
    )
