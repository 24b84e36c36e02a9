"""A Kubernetes API server for tests, faithful where an adapter depends on it.

kubectl works against it, and the stories of ``tests/adapters`` run against it and against a real
cluster alike: what differs there is a fault of this one.
"""
