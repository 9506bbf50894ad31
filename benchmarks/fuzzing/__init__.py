"""Seeded fuzzing of every parser: mutations, targets, and worker processes whose death or hang is noticed."""
