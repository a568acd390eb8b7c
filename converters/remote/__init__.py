"""Sources on hubs, in buckets and on servers: names, listings and byte ranges."""

from converters.remote.names import source_of

__all__ = ["source_of"]
