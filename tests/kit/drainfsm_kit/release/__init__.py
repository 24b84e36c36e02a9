"""Is what would be released right? ``make release-check``."""
