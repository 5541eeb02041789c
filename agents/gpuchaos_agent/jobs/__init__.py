"""Training jobs as seen from outside: their progress, by log, by metrics page, by heartbeat file."""
