"""Indexes of vectors and of sentences, which are built, searched and saved."""
