"""Observe: how the parts show themselves: metrics, health, logs, traces. No Faust, no Kafka."""
