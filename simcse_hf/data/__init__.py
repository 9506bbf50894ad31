"""Training data: readers, tokenization, batches."""
