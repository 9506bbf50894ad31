"""Training data: readers, tokenisation, batches."""
