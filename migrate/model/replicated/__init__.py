"""Values that are equal or differ between replicas: data shares, broadcasts, saves, kept states."""
