"""Conversion of a torch module to Flax source: record it, split it into classes, write them."""

from converters.graph.ported import Argument, Port, port
from converters.graph.recording.trace import GraphError
from converters.graph.writing.draft import Missing

__all__ = ["Argument", "GraphError", "Missing", "Port", "port"]
