"""Folders of sentence-transformers models, random weights, texts and packed attention, for the tests of inference."""

import json

import numpy as np
import torch
from conftest import WORDS

from simcse_hf.kernels import unpadded

FOLDERS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def as_sentence_transformer(directory, pooling, normalize=True, length=16, **settings):
    """Write the files that sentence-transformers saves beside an encoder, and return the folder."""
    kinds = ["Transformer", "Pooling", "Normalize"] if normalize else ["Transformer", "Pooling"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": FOLDERS[kind],
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    for kind in kinds[1:]:
        (directory / FOLDERS[kind]).mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "config_sentence_transformers.json": settings,
    }.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def perturb(model, scale=0.1):
    """Change every weight. Biases start at 0, where a lost bias would go unnoticed, and layer norms are all equal."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def random_texts(count, words=(1, 12)):
    """Texts of the words of the tiny vocabulary."""
    known = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(known, generator.integers(*words))) for _ in range(count)]


def attend(query, key, value, packing, **options):
    """Attend within each packed sentence. Queries, keys and values have the shape `(tokens, heads, size)`."""
    heads_first = (x.transpose(0, 1)[None] for x in (query, key, value))
    out, _ = unpadded.attend(None, *heads_first, None, packing, **options)
    return out[0]
