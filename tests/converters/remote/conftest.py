"""A hub, a server of files and a bucket for the tests of this folder, all on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import BucketProxy, FileServer, HubServer, bucket, running


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.remote.retries.FIRST_PAUSE", 0.01)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub that this process asks, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with running(HubServer()) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        # For processes that are started.
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
        assert isinstance(server, HubServer)
        yield server


@pytest.fixture
def files() -> Iterator[FileServer]:
    pytest.importorskip("huggingface_hub")
    with running(FileServer()) as server:
        assert isinstance(server, FileServer)
        yield server


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    with bucket(tmp_path_factory.mktemp("bucket") / "content") as url:
        yield url


@pytest.fixture
def gs(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketProxy]:
    """The bucket gs://bkt, empty, behind a proxy that hears what is asked."""
    with running(BucketProxy(emulator)) as proxy:
        assert isinstance(proxy, BucketProxy)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", proxy.url)
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "abc")
        for name, value in (("TOKEN", "anon"), ("PROJECT", "p")):
            monkeypatch.setenv(f"FSSPEC_GS_{name}", value)
        import fsspec
        import gcsfs

        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "project": "p"})
        gcsfs.GCSFileSystem.clear_instance_cache()
        fs = gcsfs.GCSFileSystem(use_listings_cache=False, token="anon", project="p")
        for path in fs.find("bkt"):
            fs.rm_file(path)
        proxy.requests.clear()
        yield proxy
        gcsfs.GCSFileSystem.clear_instance_cache()
