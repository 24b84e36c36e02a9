"""What people see of a log: replay and, on top of it, reports and live views."""
