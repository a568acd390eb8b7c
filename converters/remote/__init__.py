"""Places of hubs, buckets and servers: what a name means, what is there, and byte ranges of it."""

from converters.remote.names import source_of

__all__ = ["source_of"]
