"""Tensor operations: padding removal, attention, dropout, and sums and gathers across processes."""
