"""Sim: a cluster to try things on, with ground truth kept apart."""
