"""Which weight of torch belongs where in a Flax model that exists: found, and proven, by running both."""
