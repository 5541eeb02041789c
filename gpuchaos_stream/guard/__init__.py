"""Guard: rules → decisions; the breaker."""
