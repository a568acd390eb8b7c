"""Processes and threads of a project that train, their start, and the other code that they run."""
