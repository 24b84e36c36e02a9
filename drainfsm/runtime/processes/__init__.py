"""The job's command: started, found in /proc, its exit codes, killed for sure."""
