"""Objects of a project that are on an accelerator, and their devices."""
