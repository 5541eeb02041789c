"""From findings to events: several lines that are one event, floods, and which was first."""
