"""The node agent: collects telemetry and facts, injects faults, undoes them. Light on purpose."""
