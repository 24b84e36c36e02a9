"""Tools for testing drains: given/when kit, strategies, simulator. Shipped for embedders."""
