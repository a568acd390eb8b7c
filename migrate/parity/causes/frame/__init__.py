"""How causes are looked for: replays of one layer of the truth, and what of a side they are held against."""
