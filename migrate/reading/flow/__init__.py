"""In which order values are made, changed and read, and where the host waits for one."""
