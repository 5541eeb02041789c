"""Reports: what an experiment showed, and why its verdict is what it is. Events in, text out."""
