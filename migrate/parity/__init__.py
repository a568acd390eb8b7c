"""`migrate parity`: do two implementations match, layer by layer, and where do they part?

Each side runs in a process of its own (`sides`), which captures its layers into a folder (`dump`); what is
there is aligned, measured against float64 (`metrics`), judged (`profiles`, `verdict`) and explained
(`causes`).
"""
