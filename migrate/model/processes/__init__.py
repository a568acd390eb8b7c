"""Which processes and threads of a project train, what starts them, and what else they run."""
