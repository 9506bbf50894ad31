"""The code of a card gives the embeddings of the model, with every library that the card names."""

import json

import pytest
import torch
from card_helpers import EXAMPLES, blocks, check_examples
from huggingface_hub import ModelCard

from simcse_hf import SimCSE
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.postprocessing.transform import MODULES
from simcse_hf.publishing.card import write_card

#: Of 32 dimensions; the second has neither a bias nor an activation.
DENSE_LAYERS = [
    {"in_features": 32, "out_features": 24},
    {
        "in_features": 24,
        "out_features": 16,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    },
]


def read(directory):
    """The model in a directory, and its card."""
    card = write_card(directory, repo_id=str(directory)).read_text()
    return SimCSE(directory, device="cpu"), card


def with_transformers(card):
    """The last program of a card, which uses transformers alone."""
    return "```python" + card.rpartition("```python")[2]


# --- every pooler ---

OF_SENTENCE_TRANSFORMERS = [name for name in POOLER_TYPES if POOLERS[name].mode]


@pytest.mark.parametrize(
    "family, settings",
    [
        *[("bert", {"pooler_type": name}) for name in OF_SENTENCE_TRANSFORMERS],
        # A head that is used in training only, in its own file, before dense layers, and replaced by one.
        ("bert", {"mlp_only_train": True}),
        ("distilbert", {"pooler_type": "cls"}),
        ("bert", {"pooler_type": "cls", "dense_layers": DENSE_LAYERS}),
        ("distilbert", {"pooler_type": "avg", "dense_layers": DENSE_LAYERS[:1]}),
    ],
    ids=str,
)
def test_the_code_of_a_card_gives_the_embeddings_of_every_pooler_and_head(family, settings, saved):
    model, card = read(saved(family, **settings))
    check_examples(card, model.encode(EXAMPLES))


@pytest.mark.parametrize(
    "family, pooler",
    [("bert", "cls"), ("bert", "avg_first_last"), ("distilbert", "cls")],
)
def test_the_code_of_a_card_gives_the_embeddings_of_a_whitening(family, pooler, transformed):
    model, card = read(transformed("whitening", family, pooler_type=pooler))
    check_examples(card, model.encode(EXAMPLES), atol=1e-4)


# --- what sentence-transformers lacks ---


@pytest.mark.parametrize("lacking", ["avg_no_cls", "flow"])
def test_the_card_of_a_model_that_sentence_transformers_cannot_load_names_the_libraries_that_can(
    lacking, saved, transformed
):
    directory = transformed("flow") if lacking == "flow" else saved(pooler_type=lacking)
    model, card = read(directory)
    data = ModelCard(card).data
    assert data.library_name == "transformers"
    assert "sentence-transformers" not in data.tags and "simcse" in data.tags
    expected = model.encode(EXAMPLES)
    if lacking == "flow":
        assert "sentence-transformers cannot load this model" in card
        assert "flow from 32 to 32 dimensions" in card and "{li-etal-2020-sentence," in card
        assert "simcse_hf.postprocessing.flow.Flow" in (directory / MODULES).read_text()
        check_examples(card, expected, ["simcse_hf"])
    else:
        assert "sentence-transformers has no such pooling" in card
        check_examples(card, expected, ["simcse_hf", "transformers"])


# --- lengths and prompts ---


def test_the_code_of_a_card_cuts_texts_where_the_model_does(directory):
    SimCSE(directory, device="cpu", max_length=8).save_pretrained(directory)
    card = write_card(directory).read_text()
    assert "| longest text | 8 tokens |" in card and "max_length=8," in card
    assert "| `max_length`" not in card, "it is no hyper-parameter"


def test_a_card_says_where_the_tokenizer_cuts_texts_of_a_model_without_a_length(directory):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 12}))
    card = write_card(directory).read_text()
    assert SimCSE(directory, device="cpu").max_length == 12 and "| longest text | 12 tokens |" in card


def test_the_code_of_a_card_puts_the_default_prompt_before_texts(saved):
    prompts = {"query": "the big ", "passage": "a small "}
    model, card = read(saved(pooler_type="avg", prompts=prompts, default_prompt_name="query"))
    check_examples(with_transformers(card), model.encode(EXAMPLES), ["transformers"])


def test_the_code_of_a_card_encodes_queries_and_documents_with_their_prompts(saved):
    prompts = {"query": "the big ", "document": "a small "}
    model, card = read(saved(pooler_type="avg", prompts=prompts, similarity_fn_name="dot"))
    assert "| similarity | dot |" in card
    assert card.count("model.encode_query(") == card.count("model.encode_document(") == 2
    assert "model.encode(" not in card
    documents = torch.as_tensor(model.encode_document(EXAMPLES))
    for code in blocks(card)[:2]:
        variables = {}
        exec(code, variables)
        torch.testing.assert_close(torch.as_tensor(variables["documents"]), documents, atol=1e-5, rtol=0)
    unit = torch.nn.functional.normalize(documents, dim=-1)
    check_examples(with_transformers(card), unit, ["transformers"])
