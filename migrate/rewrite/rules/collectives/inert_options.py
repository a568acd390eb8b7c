"""Options of scripts that say how its processes meet."""

from __future__ import annotations

# What the xla:// rendezvous finds by itself.
INERT = frozenset(
    {
        "dist_backend",
        "dist_url",
        "dist_file",
        "init_method",
        "master_addr",
        "master_port",
    }
)
