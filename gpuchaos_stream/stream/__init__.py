"""Stream: the only room that knows Faust and Kafka."""
