"""Loop: the stages put together. The worker runs this on Kafka, the replay from a file; both the same code."""
