"""A small data-parallel training job to break: real gradients, collectives, checkpoints, TLS, a database, on CPUs."""
