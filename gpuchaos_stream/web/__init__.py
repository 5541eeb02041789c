"""What people look at while it runs: the board of each cluster, its API, the live page. It knows no Kafka."""
