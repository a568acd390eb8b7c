"""`migrate parity`: do two implementations match, layer by layer, and where do they diverge?

Each side runs in a process of its own (`sides`), which captures its layers into a folder (`dump`). The dumps
are aligned (`align`), measured against float64 (`judge.metrics`), judged (`judge.profiles`, `judge.verdict`)
and explained (`causes`).
"""
