"""Places of hubs, buckets and servers: what a name means, what is there, and byte ranges of it."""

from converters.remote.names import place_of

__all__ = ["place_of"]
