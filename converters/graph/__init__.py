"""From a torch module to the source of a Flax one: recorded, taken apart into its classes, and written."""

from converters.graph.ported import Argument, Port, port
from converters.graph.recording.trace import GraphError
from converters.graph.writing.draft import Missing

__all__ = ["Argument", "GraphError", "Missing", "Port", "port"]
