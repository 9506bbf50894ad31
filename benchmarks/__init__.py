"""Benchmarks of simcse_hf: `python -m benchmarks` lists them."""
