"""GPUChaos Stream: chaos experiments on GPU clusters, told apart from real failures, timed, and halted.

The folders read in the direction of the data: collect (in `agents/`) → detect → correlate → recovery →
guard → act. A stage never imports a later one; only `stream/` knows Faust and Kafka.
"""

__version__ = "0.1.0"
