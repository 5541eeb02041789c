"""`gpuchaos-agent read` and `capture`: the same readers over something recorded."""
