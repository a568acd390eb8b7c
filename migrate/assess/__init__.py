"""Is a port worth it: what it asks for, where the step runs, what a run costs here and there."""
