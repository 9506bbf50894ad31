"""Objectives that learn from labels: relations of premises and hypotheses, and scores of pairs."""
