"""Values that are logged: kept on the device until something looks at them (`--defer-reads`)."""
