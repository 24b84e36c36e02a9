"""The imperative shell: agents, the coordinator, rank clients. Reads clocks, does the effects."""
