"""Faults: one file each, one interface, found through one registry."""
