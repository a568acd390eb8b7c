"""Which hubs and buckets can be reached from here: the package that speaks to each, and credentials.

Nothing is asked of a network, and no credential is read, only whether there is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from converters.installing import install_command
from converters.remote.region import is_on_google

_GCLOUD = ".config/gcloud/application_default_credentials.json"
_AWS = (".aws/credentials", ".aws/config")
_AZURE = (
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
)
_HUB_TOKEN = ".cache/huggingface/token"


@dataclass(frozen=True)
class Ready:
    """A kind of place.

    Attributes:
        name: of the place: "gs://".
        version: of the package that speaks to it; None: it is not installed.
        credentials: where they will be found; "" if nowhere.
        without: what can be done without them.
        install: the command that brings the package.
        log_in: what to do to have credentials.
    """

    name: str
    version: str | None
    credentials: str
    without: str
    install: str
    log_in: str


def ready(environment: Mapping[str, str], home: Path | None = None) -> tuple[Ready, ...]:
    """The hub and the buckets, each as it stands here.

    Args:
        environment: the environment variables.
        home: the user's folder; None: as the system says.
    """
    home = home or Path(os.path.expanduser("~"))
    return (
        Ready(
            "Hugging Face hub",
            _version("huggingface_hub"),
            _first(
                environment, ("HF_TOKEN",), home, (environment.get("HF_TOKEN_PATH", _HUB_TOKEN),)
            ),
            "public repositories only",
            install_command("hub"),
            "hf auth login, or set HF_TOKEN",
        ),
        Ready(
            "gs://",
            _version("gcsfs"),
            _first(environment, ("GOOGLE_APPLICATION_CREDENTIALS",), home, (_GCLOUD,))
            or ("the service account of this machine" if is_on_google(environment) else ""),
            "public buckets only",
            install_command("gcs"),
            "gcloud auth application-default login",
        ),
        Ready(
            "s3://",
            _version("s3fs"),
            _first(environment, ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"), home, _AWS),
            "what the machine's role may read",
            install_command("s3"),
            "aws configure",
        ),
        Ready(
            "az://",
            _version("adlfs"),
            _first(environment, _AZURE, home, ()),
            "what the machine's identity may read, with AZURE_STORAGE_ACCOUNT_NAME",
            install_command("azure"),
            "az login, and set AZURE_STORAGE_ACCOUNT_NAME",
        ),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first(
    environment: Mapping[str, str], names: tuple[str, ...], home: Path, files: tuple[str, ...]
) -> str:
    """The variable or file, of the user's folder, that is there; "" if none is."""
    for name in names:
        if environment.get(name):
            return name
    return next((f"~/{file}" for file in files if (home / file).is_file()), "")
