"""What tests of several objectives share: a comparison with a slow reference, and models with an objective."""

import math

import pytest
import torch
from conftest import CLS, MASK, SEP, VOCABULARY, tiny_config
from datasets import Dataset
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.token_ids import template_settings
from simcse_hf.data.tokenize import tokenize_dataset

TEMPLATES = [
    "the {text} , [MASK] .",
    "on {text} . [MASK] ,",
]  # of equal lengths and different tokens
TEXTS = [
    "cat sat",
    "a big dog ran on the mat",
    "bird",
    "old man slept",
    "red house",
    "woman sang in the tree",
]


def gradients_of(loss, leaves):
    """The gradient for each leaf, which is None for one that the loss does not depend on."""
    return torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)


def gradients_by_name(model):
    """The gradient of each parameter that has one."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(found, expected, leaves, rtol=1e-7, atol=1e-10):
    """That a loss and its gradients, of leaves or of a model, are those of a slow reference, and not all 0."""
    assert found.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    if isinstance(leaves, torch.nn.Module):
        leaves = [parameter for parameter in leaves.parameters() if parameter.requires_grad]
    leaves = [leaves] if isinstance(leaves, torch.Tensor) else list(leaves)
    exact = gradients_of(expected, leaves)
    assert any(gradient is not None and gradient.any() for gradient in exact)
    for leaf, one, other in zip(leaves, gradients_of(found, leaves), exact, strict=True):
        one = torch.zeros_like(leaf) if one is None else one
        other = torch.zeros_like(leaf) if other is None else other
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, check_dtype=False)


def assert_same_outputs(found, expected, leaves, **tolerance):
    """That two tensors are the same, and the gradients of a weighted sum of them."""
    torch.testing.assert_close(found, expected, **tolerance)
    weight = torch.randn_like(found)
    gradients = torch.autograd.grad((found * weight).sum(), leaves)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), leaves)
    torch.testing.assert_close(gradients, expected_gradients, **tolerance)


def cosine(x, y):
    return (x * y).sum() / (x.square().sum().sqrt() * y.square().sum().sqrt())


def beside(rows, columns):
    """What objectives read beside the texts of rows: numbers, some of them equal, scores, classes and vectors."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(rows, columns, 4, generator=generator, dtype=torch.float64)
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return {
        "text_ids": torch.randint(0, 9, (rows, columns), generator=generator),
        "scores": torch.arange(rows) % 3 / 2,
        "labels": torch.arange(rows) % 3,
        "teacher": vectors,
        "guide": vectors,
    }


def same_meaning(ids, own, pairs):
    """The texts of a row's first two columns, and those that stand in a pair with either of them."""
    own_texts = set(ids[own, :2].tolist())
    found = set(own_texts)
    for row in pairs:
        pair = set(ids[row, :2].tolist())
        if pair & own_texts:
            found |= pair
    return found


def is_compared(column, is_own_row, symmetric, negatives):
    """Whether the query of a row is compared with a text of a column, here or in another row."""
    if symmetric:
        return True
    if column == 0:
        return negatives in ("batch+queries", "all")
    return is_own_row or negatives != "own"


def slow_info_nce(
    embeddings,
    tau=0.05,
    weight=0.0,
    kind="cosine",
    *,
    rows=None,
    symmetric=False,
    extra=(),
    ids=None,
    pairs=None,
    margin=math.inf,
    negatives="batch",
):
    """InfoNCE, term by term: the mean over the queries of `rows`, each with its positive and every negative.

    `negatives` are those of the option of `simcse`. With `ids`, a text is no negative of those that `pairs`, by
    default all rows, say to mean the same.
    """
    compare = cosine if kind == "cosine" else torch.dot
    every_row = range(len(embeddings))
    with_documents = negatives in ("batch+documents", "all")
    losses = []
    for own in every_row if rows is None else rows:
        means_the_same = set()
        if ids is not None:
            means_the_same = same_meaning(ids, own, every_row if pairs is None else pairs)
        for query, target in [(0, 1), (1, 0)] if symmetric else [(0, 1)]:
            anchor = embeddings[own][query]
            document = embeddings[own][1]
            positive = compare(anchor, embeddings[own][target])
            logits = [positive / tau]
            for j, others in enumerate(embeddings):
                is_own_row = j == own
                for column, other in enumerate(others):
                    if is_own_row and column < 2:
                        continue
                    if ids is not None and ids[j, column].item() in means_the_same:
                        continue
                    scores = []
                    if is_compared(column, is_own_row, symmetric, negatives):
                        scores.append(compare(anchor, other))
                    if with_documents and column > 0 and not is_own_row:
                        scores.append(compare(document, other))
                    added = weight if is_own_row else 0
                    logits += [score / tau + added for score in scores if score <= positive + margin]
            for other in extra:
                scores = [compare(anchor, other)]
                if with_documents:
                    scores.append(compare(document, other))
                logits += [score / tau for score in scores if score <= positive + margin]
            losses.append(torch.stack(logits).logsumexp(0) - logits[0])
    return sum(losses) / len(losses)


def assert_opens_in_transformers(folder):
    _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


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


def masked_lm_folder(folder, tokenizer, **changes):
    """A directory with a masked-LM, clearly decided weights, and the tokenizer."""
    torch.manual_seed(7)
    config = tiny_config(initializer_range=0.5, **changes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def diffcse(generator, model_type="bert", projector=False, **settings):
    options = {"generator": generator, "replaced_weight": 0.5, "projector": projector}
    return model_of("diffcse", options, model_type, **settings)


def masking_every_word(model):
    """The model, whose objective masks every word in place of some at random."""

    def mask_words(ids, special_tokens_mask):
        return torch.where(ids > MASK, MASK, ids), ids

    model.objective._masker.torch_mask_tokens = mask_words
    return model


def promptbert(tokenizer, templates=TEMPLATES, options=None, **settings):
    """A model with templates; without further options, its objective has no head."""
    settings |= {"pooler_type": "mask", "templates": templates}
    settings |= template_settings(templates, tokenizer)
    if options is None:
        options = {"head": False}
    return model_of("promptbert", options, **settings)


def batch_of_templates(tokenizer, texts=TEXTS, templates=TEMPLATES):
    """A batch of texts, or of columns of texts, in their templates."""
    columns = texts if isinstance(texts, dict) else {"sent0": texts}
    rows = tokenize_dataset(Dataset.from_dict(columns), tokenizer, 20, templates=templates)
    return ContrastiveCollator(tokenizer)(list(rows))


def id_of(words):
    return [VOCABULARY.index(word) for word in words.split()]


def slow_vector(model, ids, positions):
    """The hidden state at the mask token of one row with these tokens and positions."""
    inputs = {
        "input_ids": torch.tensor([ids]),
        "position_ids": torch.tensor([positions]),
    }
    return model.base_model(**inputs).last_hidden_state[0, ids.index(MASK)]


def full_and_alone(model, template, text, edges):
    """The vectors of a text in a template, and of the template with the places of the text left empty."""
    ids = [CLS, *id_of(template.format(text)), SEP]
    places = list(range(len(ids)))
    before, after = edges
    end = len(ids) - after
    full = slow_vector(model, ids, places)
    alone = slow_vector(model, ids[:before] + ids[end:], places[:before] + places[end:])
    return full, alone
