"""Real things to break: hosts, databases, BMCs and a whole machine, made for a test or a demo and gone after it."""
