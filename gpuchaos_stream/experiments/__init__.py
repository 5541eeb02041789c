"""Experiments: plans, their check, their life."""
