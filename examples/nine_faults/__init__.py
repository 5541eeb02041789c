"""The example workload under each of the nine faults, through the whole loop."""
