"""Availability of hubs and buckets: the installed package, and credentials.

No network is used, and credentials are only detected, never read.
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
    """Kind of remote source.

    Attributes:
        name: its name, such as "gs://".
        version: the version of its package; None if not installed.
        credentials: the location of the credentials, or "".
        without: the possibilities without credentials.
        install: the command that installs the package.
        log_in: the way to get credentials.
    """

    name: str
    version: str | None
    credentials: str
    without: str
    install: str
    log_in: str


def ready(environment: Mapping[str, str], home: Path | None = None) -> tuple[Ready, ...]:
    """Return the availability of the hub and the buckets.

    Args:
        environment: the environment variables.
        home: the user's home folder; None for the system's.
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
    """Return the first existing variable or file in the user's folder, or ""."""
    for name in names:
        if environment.get(name):
            return name
    return next((f"~/{file}" for file in files if (home / file).is_file()), "")
