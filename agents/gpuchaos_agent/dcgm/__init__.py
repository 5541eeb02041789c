"""A DCGM exporter page: its samples, its gaps, and what it can hide."""
