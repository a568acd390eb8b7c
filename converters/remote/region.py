"""Regions of a bucket and of this machine: transfers between regions cost money and are slow.

This is checked only on Google's machines, whose metadata server reports their zone, and for
Google's buckets, which report their location to users with permission. In all other cases nothing
is printed.
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
from converters.remote.buckets import BucketStore, call_client, filesystem
from converters.remote.retries import TemporaryError
from converters.remote.store import StoreSource

# Product name of a Google virtual machine.
_PRODUCT = Path("/sys/class/dmi/id/product_name")
_METADATA_HOST = "GCE_METADATA_HOST"  # as read by Google's own clients
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
    """Location of a bucket.

    Attributes:
        name: the bucket's location: a region, a pair of regions, a continent.
        regions: the regions of a custom pair.
    """

    name: str
    regions: tuple[str, ...] = ()

    def contains(self, region: str) -> bool:
        """Whether the location contains a region."""
        name = self.name.upper()
        if not self.regions and name in _CONTINENTS:
            return region.startswith(_CONTINENTS[name])
        regions = self.regions or _PAIRS.get(name, (name,))
        return region.lower() in {name.lower() for name in regions}

    def __str__(self) -> str:
        return "+".join(self.regions) or self.name


def is_on_google(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a Google machine, or a metadata server of one is configured."""
    if environment.get(_METADATA_HOST):
        return True
    try:
        return _PRODUCT.read_text().startswith("Google")
    except OSError:
        return False


def zone_of_machine(environment: Mapping[str, str] = os.environ) -> str:
    """Return the zone of this machine from the metadata server, "us-central1-a"; "" if unknown."""
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
    """Return the region of a zone: "us-central1" for "us-central1-a"."""
    return zone.rpartition("-")[0]


def location_of(source: Source) -> Location | None:
    """Return the location of a source's bucket; None if unknown.

    Raises:
        ConversionError, FileNotFoundError, TemporaryError: the request failed.
    """
    store = _bucket_of(source)
    if store is None:
        return None
    bucket = store.root.partition("/")[0]
    fs = filesystem(store.protocol, store.url, source)
    info: Any = call_client(source, lambda: fs.call("GET", f"b/{bucket}", json_out=True))
    if not isinstance(info, dict) or "location" not in info:
        return None
    placed = info.get("customPlacementConfig")
    chosen = placed.get("dataLocations") if isinstance(placed, dict) else None
    return Location(str(info["location"]), tuple(map(str, chosen or ())))


def _bucket_of(source: Source) -> BucketStore | None:
    store = source.store if isinstance(source, StoreSource) else None
    is_google = isinstance(store, BucketStore) and store.protocol in ("gs", "gcs")
    return store if isinstance(store, BucketStore) and is_google else None


def region_warning(source: Source) -> str:
    """Return a warning if the source's bucket is in another region than this machine, or "".

    It costs one request, on Google's machines only, and never fails.
    """
    zone = "" if _bucket_of(source) is None else zone_of_machine()
    if not zone:
        return ""
    try:
        location = location_of(source)
    except (ConversionError, TemporaryError, OSError):
        return ""
    if location is None or location.contains(region_of(zone)):
        return ""
    return (
        f"the bucket of {source} lies in {location}, this machine in {zone}: what is moved between regions "
        "costs, and comes slower"
    )
