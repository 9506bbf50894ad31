"""Which of several ways to train is better: the same seeds for every way, one table, one verdict."""
