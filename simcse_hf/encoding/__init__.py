"""Inference: encode texts with a trained model, one call or files of any size, and quantize embeddings."""
