"""The documentation as a site: `make docs` builds it, and fails on a link that leads nowhere."""
