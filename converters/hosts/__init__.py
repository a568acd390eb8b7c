"""Processes of several hosts that share a conversion: identity, rendezvous and division of work."""

from converters.hosts.hosts import ALONE, Hosts
from converters.hosts.identity import Process, detected, parse_process
from converters.hosts.meeting import met
from converters.hosts.shares import shares

__all__ = ["ALONE", "Hosts", "Process", "detected", "met", "parse_process", "shares"]
