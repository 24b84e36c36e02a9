"""The pure core: inputs and state in, events out. No I/O, no clock, no randomness."""
