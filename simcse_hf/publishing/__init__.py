"""Publishes a model: its card, the push to the hub, and exports to other formats."""
