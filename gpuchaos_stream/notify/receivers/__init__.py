"""Who can be told: a file each, found by `registry.py`."""
