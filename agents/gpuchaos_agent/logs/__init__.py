"""Logs as streams of records: one file for each framing, and how a log is followed."""
