"""Contrastive models: encoder, pooler, head, settings and checkpoints."""
