"""Training: the Trainer, its arguments, callbacks and checks."""
