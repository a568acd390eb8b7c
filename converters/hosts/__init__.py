"""Processes of several hosts that share a conversion: who they are, how they meet, who does what."""

from converters.hosts.hosts import ALONE, Hosts
from converters.hosts.identity import Process, detected, parse_process
from converters.hosts.meeting import met
from converters.hosts.shares import shares

__all__ = ["ALONE", "Hosts", "Process", "detected", "met", "parse_process", "shares"]
