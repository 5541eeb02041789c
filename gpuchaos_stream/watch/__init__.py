"""The view of what runs now: events in, rows out, drawn on a terminal or printed as they change."""
