"""Publishes a model: its card, and the push to the hub."""
