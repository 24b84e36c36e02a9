"""One agent per node: owns the node's processes, hears notices, keeps the time."""
