"""A script's own run: where it trains, and what it computes there."""
