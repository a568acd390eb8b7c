"""Support of XLA for the names of libraries, one file per library; rules and reports read it here."""
