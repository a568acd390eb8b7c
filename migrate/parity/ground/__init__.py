"""What every room knows: results, errors, options, settings, the pairs of layers."""
