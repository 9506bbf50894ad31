"""Indexes: embeddings that are searched exactly or with faiss, and sentences with an index of theirs."""
