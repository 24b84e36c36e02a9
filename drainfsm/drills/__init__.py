"""Rehearsals with a real job: a scenario is played, and judged by its log and its store."""
