"""Telemetry frames in, anomalies and cell summaries out: vectorised over the cells that one worker holds."""
