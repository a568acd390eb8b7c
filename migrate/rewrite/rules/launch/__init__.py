"""How the replicas are started: spawn, torchrun, a main function, a notebook."""
