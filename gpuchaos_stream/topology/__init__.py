"""Topology: where each device sits, what is near what."""
