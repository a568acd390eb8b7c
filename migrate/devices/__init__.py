"""Probe of the local chips for faults. `examine` runs it; docs/devices.md describes its programs."""
