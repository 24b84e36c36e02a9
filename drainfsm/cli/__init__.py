"""The command line: each command parses, calls the layers below, prints."""
