"""The web dashboard: one reader of the log, any number of viewers. Nothing here writes."""
