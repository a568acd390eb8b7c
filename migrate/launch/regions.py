"""Regions of slices and buckets, and the price of reading from another one."""

from __future__ import annotations

import re

from converters.remote.region import Location

# US dollars per GiB between two regions of North America or of Europe; other pairs cost more. An assumption:
# guides to the price list say 0.01 to 0.02 within a continent (2026); the list itself was not at hand.
DOLLARS_PER_GIB = 0.02
PRICING = "https://cloud.google.com/storage/pricing"

_GIB_PER_TB = 1e12 / 2**30
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?")


def region_of_zone(zone: str) -> str:
    """Return the region of a zone: `us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def is_bucket(url: str) -> bool:
    """Whether a text is the URL of a bucket, or of a folder in one."""
    return _BUCKET.fullmatch(url) is not None


def transfer_warning(url: str, location: str, zone: str) -> str | None:
    """Return a line with the price if a bucket lies outside the region of a slice.

    Args:
        url: the bucket.
        location: the region, pair of regions or continent of the bucket.
        zone: the zone of the slice.
    """
    region = region_of_zone(zone)
    if Location(location).contains(region):
        return None
    dollars = DOLLARS_PER_GIB * _GIB_PER_TB
    near = location.split("-")[0].lower() == region.split("-")[0]
    least = f"up to {dollars:.0f} dollars" if near else f"{dollars:.0f} dollars or more"
    where = f"{url} lies in {location.lower()}, the slice in {region}"
    return f"{where}: {least} per TB read (assumed; see {PRICING})"
