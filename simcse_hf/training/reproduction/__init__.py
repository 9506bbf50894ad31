"""Tables of papers as runs of this package: what is trained, measured and compared with the paper's figures."""
