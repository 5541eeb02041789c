"""The contract: what travels between the parts. Import from the modules; this package imports nothing."""
