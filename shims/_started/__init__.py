"""Launch of a script by `python -m shims`: detection of its launcher, and its ranks as processes."""
