"""Tables of papers as runs of simcse_hf: what is trained, measured and compared with the scores of the paper."""
