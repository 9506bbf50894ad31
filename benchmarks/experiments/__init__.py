"""Finished experiments that a default of the package or a figure of README rests on, as plain programs.

`python -m benchmarks.experiments.NAME` repeats one of them, and prints its numbers.
"""
