"""Number of this host and addresses of all, from the variables of each launcher."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from migrate.launch.host.settings import ADDRESSES, INDEX

# Google's own clients read this variable, too.
METADATA_HOST = "GCE_METADATA_HOST"
_SECONDS = 5.0


class UnknownHostError(Exception):
    """A variable of the launcher is missing, so the host does not know its number."""


@dataclass(frozen=True)
class SliceHost:
    """Host among the hosts of a slice, as this process sees itself.

    Attributes:
        index: number of this host, from 0.
        addresses: addresses of all hosts, host 0 first.
    """

    index: int
    addresses: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of hosts."""
        return len(self.addresses)

    @property
    def first(self) -> str:
        """Address of host 0."""
        return self.addresses[0]


def this_host(launcher: str, count: int, environment: Mapping[str, str] = os.environ) -> SliceHost:
    """Return the number of this host and the addresses of all.

    Args:
        launcher: name of the launcher.
        count: the number of hosts of the slice.
        environment: the variables of this process.

    Raises:
        UnknownHostError: a variable is missing, or names another number of hosts.
    """
    try:
        if INDEX in environment:  # of a trial, before those of any launcher
            index, addresses = environment[INDEX], environment[ADDRESSES].split(",")
        elif count == 1:
            return SliceHost(0, ("localhost",))
        else:
            index, addresses = _READERS[launcher](environment)
    except KeyError as error:
        raise UnknownHostError(
            f"{launcher} did not set {error.args[0]}, and {count} hosts need it"
        ) from None
    except OSError as error:
        raise UnknownHostError(f"the metadata server does not answer: {error}") from None
    if len(addresses) != count or not index.isdecimal() or int(index) >= count:
        raise UnknownHostError(
            f"{launcher} names {len(addresses)} hosts and gives this one number {index}; "
            f"the slice has {count}"
        )
    return SliceHost(int(index), tuple(addresses))


def _of_skypilot(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    return environment["SKYPILOT_NODE_RANK"], environment["SKYPILOT_NODE_IPS"].split()


def _of_gke(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    index = environment.get("TPU_WORKER_ID") or environment["JOB_COMPLETION_INDEX"]
    return index, environment["TPU_WORKER_HOSTNAMES"].split(",")


def _of_metadata(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    server = environment.get(METADATA_HOST, "metadata.google.internal")

    def attribute(name: str) -> str:
        request = urllib.request.Request(
            f"http://{server}/computeMetadata/v1/instance/attributes/{name}",
            headers={"Metadata-Flavor": "Google"},
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return str(answer.read().decode()).strip()

    # Each endpoint is NAME:NAME:ADDRESS.
    endpoints = attribute("worker-network-endpoints").split(",")
    return attribute("agent-worker-number"), [text.rpartition(":")[2] for text in endpoints]


def _of_dstack(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    return environment["DSTACK_NODE_RANK"], environment["DSTACK_NODES_IPS"].split()


_READERS = {
    "skypilot": _of_skypilot,
    "gke": _of_gke,
    "xpk": _of_gke,
    "gcloud": _of_metadata,
    "jobman": _of_metadata,
    "dstack": _of_dstack,
}
