"""Shared types: results, errors, options, settings, pairs of layers."""
