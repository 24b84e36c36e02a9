"""Runs inside the processes of the job: the session, its reader thread, the SIGTERM shield."""
