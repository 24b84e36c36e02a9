"""In the agent of node 0: the decision loop of an attempt, and what its decisions do."""
