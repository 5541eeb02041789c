"""Collectors: one file a source, one interface, found through one registry."""
