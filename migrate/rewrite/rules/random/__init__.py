"""Seeds and the states of random generators."""
