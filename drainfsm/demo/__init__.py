"""The whole story on one machine: a real job drains, leaves, and comes back."""
