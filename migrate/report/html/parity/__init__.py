"""The page of `migrate parity`: its tables, its plots."""
