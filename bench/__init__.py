"""Benchmarks: every number beside a real peer or a physical limit, measured in the same round."""
