"""How `python -m shims` starts a script: what it expects, and its ranks as processes."""
