"""Retrieval: indexes of sentences that are built and searched, near-duplicates, and hard negatives that are mined."""
