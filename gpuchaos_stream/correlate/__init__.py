"""Correlate: faults × anomalies → incidents, blast radius."""
