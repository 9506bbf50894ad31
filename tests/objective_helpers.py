"""What tests of several objectives share: a comparison with a slow reference, and models with an objective."""

import math

import pytest
import torch
from conftest import CLS, MASK, SEP, VOCABULARY, tiny_config
from datasets import Dataset
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.templates import template_settings
from simcse_hf.data.tokenize import tokenize_dataset

TEMPLATES = ["the {text} , [MASK] .", "on {text} . [MASK] ,"]  # of equal lengths and different tokens
TEXTS = ["cat sat", "a big dog ran on the mat", "bird", "old man slept", "red house", "woman sang in the tree"]


def assert_same(found, expected, leaves, rtol=1e-7, atol=1e-10):
    """That a loss and its gradients are those of a slow reference, and not all 0."""
    assert found.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    leaves = [leaves] if isinstance(leaves, torch.Tensor) else list(leaves)
    ours, exact = (
        torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True) for loss in (found, expected)
    )
    for one, other in zip(ours, exact, strict=True):
        one, other = (torch.zeros(()) if x is None else x for x in (one, other))
        torch.testing.assert_close(one.expand(other.shape), other, rtol=rtol, atol=atol, check_dtype=False)
    assert any(x is not None and x.abs().max() > 0 for x in exact)


def assert_same_outputs(found, expected, leaves):
    """That two tensors are the same, and the gradients of a weighted sum of them."""
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad((x * weight).sum(), leaves) for x in (found, expected)]
    torch.testing.assert_close(*gradients)


def cosine(x, y):
    return (x * y).sum() / (x.square().sum().sqrt() * y.square().sum().sqrt())


def same_meaning(ids, own, pairs):
    """The texts of a row's first two columns, and those that stand in a pair with either of them."""
    texts = set(ids[own, :2].tolist())
    linked = [set(ids[row, :2].tolist()) for row in pairs]
    return texts.union(*(pair for pair in linked if pair & texts))


def slow_info_nce(
    embeddings, tau=0.05, weight=0.0, kind="cosine", *, rows=None, symmetric=False, extra=(), ids=None, pairs=None,
    margin=math.inf, negatives="batch"
):  # fmt: skip
    """InfoNCE, term by term: the mean over the queries of `rows`, each with its positive and every negative.

    `negatives` are those of the option of `simcse`. With `ids`, a text is no negative of those that `pairs`, by
    default all rows, say to mean the same.
    """
    compare, losses = cosine if kind == "cosine" else torch.dot, []
    for own in range(len(embeddings)) if rows is None else rows:
        for query, target in ((0, 1), (1, 0)) if symmetric else ((0, 1),):
            anchor = embeddings[own][query]
            positive = compare(anchor, embeddings[own][target])
            pairs = range(len(embeddings)) if pairs is None else pairs
            own_texts = set() if ids is None else same_meaning(ids, own, pairs)
            logits = [positive / tau]
            for j, others in enumerate(embeddings):
                for column, other in enumerate(others):
                    if (j == own and column < 2) or (ids is not None and ids[j, column].item() in own_texts):
                        continue
                    scores = []
                    if symmetric or (column > 0 and (j == own or negatives != "own")):
                        scores.append(compare(anchor, other))
                    elif column == 0 and negatives in ("batch+queries", "all"):
                        scores.append(compare(anchor, other))
                    if column > 0 and j != own and negatives in ("batch+documents", "all"):
                        scores.append(compare(embeddings[own][1], other))
                    for score in scores:
                        if score <= positive + margin:
                            logits.append(score / tau + (weight if j == own else 0))
            compared = [anchor, embeddings[own][1]] if negatives in ("batch+documents", "all") else [anchor]
            scores = [compare(text, other) for other in extra for text in compared]
            logits += [score / tau for score in scores if score <= positive + margin]
            losses.append(torch.stack(logits).logsumexp(0) - logits[0])
    return sum(losses) / len(losses)


def embeddings_of_card(card):
    """What the program for `transformers` alone on a model card embeds its texts to, and these texts."""
    names = {}
    exec(card.split("With `transformers` alone:")[1].split("```python")[1].split("```")[0], names)
    return names["embeddings"], ["A cat sits on the mat.", "A feline rests on a rug."]


def assert_opens_in_transformers(folder):
    _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def model_of(objective, options=None, model_type="bert", dropout=0.0, **settings):
    """A small model in float64 and training mode, with its objective."""
    torch.manual_seed(3)
    config = tiny_config(model_type, dropout=dropout, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, objective=objective, objective_options=options or {}, **settings)
    model.prepare_objective()
    return model.double().train()


def esimcse(queue_size=7, momentum=0.9, **settings):
    return model_of("esimcse", {"queue_size": queue_size, "momentum": momentum}, **settings)


def tsdae(model_type="bert", pooler_type="cls_before_pooler", **settings):
    return model_of("tsdae", model_type=model_type, pooler_type=pooler_type, **settings)


def masked_lm_folder(folder, tokenizer, model_type="bert", **changes):
    """A directory with a masked-LM, clearly decided weights, and the tokenizer."""
    torch.manual_seed(7)
    config = tiny_config(model_type, initializer_range=0.5, **changes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def diffcse(generator, model_type="bert", projector=False, **settings):
    options = {"generator": generator, "replaced_weight": 0.5, "projector": projector}
    return model_of("diffcse", options, model_type, **settings)


def masking_every_word(model):
    masker = model.objective._masker
    masker.torch_mask_tokens = lambda ids, special_tokens_mask: (torch.where(ids > MASK, MASK, ids), ids)
    return model


def promptbert(tokenizer, templates=TEMPLATES, options=None, **settings):
    """A model with templates; without further options, its objective has no head."""
    settings |= {"pooler_type": "mask", "templates": templates, **template_settings(templates, tokenizer)}
    return model_of("promptbert", {"head": False} if options is None else options, **settings)


def batch_of_templates(tokenizer, texts=TEXTS, templates=TEMPLATES):
    columns = texts if isinstance(texts, dict) else {"sent0": texts}
    rows = tokenize_dataset(Dataset.from_dict(columns), tokenizer, 20, templates=templates)
    return ContrastiveCollator(tokenizer)(list(rows))


def id_of(words):
    return [VOCABULARY.index(word) for word in words.split()]


def slow_vector(model, ids, positions):
    """The hidden state at the mask token of one row with these tokens and positions."""
    hidden = model.base_model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions])).last_hidden_state
    return hidden[0, ids.index(MASK)]


def full_and_alone(model, template, text, edges):
    """The vectors of a text in a template, and of the template with the places of the text left empty."""
    ids = [CLS, *id_of(template.format(text)), SEP]
    alone = [(token, t) for t, token in enumerate(ids) if not edges[0] <= t < len(ids) - edges[1]]
    return slow_vector(model, ids, list(range(len(ids)))), slow_vector(
        model, [token for token, _ in alone], [t for _, t in alone]
    )
