"""The region of a bucket beside the zone of the machine, as a metadata server tells it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import save

from converters import convert, plan
from converters.remote import region
from converters.remote.buckets import bucket_source
from converters.remote.region import Location, region_warning, zone_of_machine
from migrate.doctor import Status, check_place
from tests.converters.remote.test_sources import put
from tests.servers import Answer, BucketProxy, Handler, Server, running

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


class MetadataServer(Server):
    """As every virtual machine of Google's has one."""

    zone = "us-central1-a"
    flavor = "Google"

    def answer(self, request: Handler, body: bytes) -> Answer:
        if request.path != "/computeMetadata/v1/instance/zone":
            return 404, {}, b""
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, {}, b""
        text = f"projects/123/zones/{self.zone}".encode()
        return 200, {"Metadata-Flavor": self.flavor}, text


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with running(MetadataServer()) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        region._zone.cache_clear()
        assert isinstance(server, MetadataServer)
        yield server
    region._zone.cache_clear()


def test_the_zone_is_what_the_metadata_server_tells(metadata: MetadataServer) -> None:
    assert zone_of_machine() == "us-central1-a"
    region._zone.cache_clear()
    metadata.flavor = "a captive portal"
    assert zone_of_machine() == ""


def test_no_metadata_server_is_no_zone(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    assert zone_of_machine() == ""
    monkeypatch.delenv("GCE_METADATA_HOST")
    monkeypatch.setattr(region, "_PRODUCT", tmp_path)
    assert zone_of_machine() == ""


def test_a_bucket_elsewhere_is_a_note(gs: BucketProxy, metadata: MetadataServer) -> None:
    """The emulated bucket lies in the US."""
    put({"net.safetensors": save({"layers.0.weight": np.ones((3, 4), np.float32)})})
    name = "gs://bkt/run/net.safetensors"
    options = {"assume": ["layers.*=Linear"]}
    done = convert(name, output="gs://bkt/run/near.safetensors", **options)  # type: ignore[arg-type]
    assert not any("lies in" in note for note in done.notes)
    region._zone.cache_clear()
    metadata.zone = "europe-west4-b"
    done = convert(name, output="gs://bkt/run/far.safetensors", **options)  # type: ignore[arg-type]
    line = "lies in US, this machine in europe-west4-b: what is moved between regions costs"
    for place in (name, "gs://bkt/run/far.safetensors"):
        assert any(f"the bucket of {place} {line}" in note for note in done.notes)
    assert plan(name, **options).rows  # type: ignore[arg-type]
    place = bucket_source(name)
    gs.forbidden |= {"GET"}  # who may not ask hears nothing
    assert region_warning(place) == ""


def test_doctor_says_where_a_bucket_lies(gs: BucketProxy, metadata: MetadataServer) -> None:
    put({"net.safetensors": b"x"})
    near = check_place("gs://bkt/run/net.safetensors")
    assert (near.status, near.detail) == (
        Status.OK,
        "in US, the region of this machine (us-central1-a)",
    )
    region._zone.cache_clear()
    metadata.zone = "asia-east1-c"
    far = check_place("gs://bkt/run")
    assert far.status is Status.WARNING
    assert far.detail.startswith("in US, but this machine is in asia-east1-c: ")
    assert far.remedy == "use a bucket in asia-east1"
    assert check_place("gs://none/run/net.safetensors").status is Status.FAIL
    gs.forbidden |= {"GET"}
    refused = check_place("gs://bkt/run/net.safetensors")
    assert (refused.status, "no permission" in refused.detail) == (Status.FAIL, True)


@pytest.mark.parametrize(
    ("location", "inside", "outside"),
    [
        (Location("US-CENTRAL1"), "us-central1", "us-central2"),
        (Location("EU"), "europe-west4", "us-central1"),
        (Location("nam4"), "us-east1", "us-east4"),
        (Location("US", ("US-EAST1", "US-WEST1")), "us-west1", "us-central1"),
    ],
)
def test_what_lies_in_a_location(location: Location, inside: str, outside: str) -> None:
    assert location.contains(inside)
    assert not location.contains(outside)
