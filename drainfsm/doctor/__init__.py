"""Tries an environment before a job is trusted to it."""
