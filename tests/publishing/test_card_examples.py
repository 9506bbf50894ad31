"""The code of a card gives the embeddings of the model, with every library that the card names."""

import pytest
import torch
from card_helpers import EXAMPLES, LIBRARIES, blocks, check_examples
from huggingface_hub import ModelCard

from simcse_hf import SimCSE
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.postprocessing.transform import MODULES
from simcse_hf.publishing import write_card

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
    return SimCSE(directory, device="cpu"), write_card(
        directory, repo_id=str(directory)
    ).read_text()


def with_transformers(card):
    return "```python" + card.rpartition("```python")[2]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *(
            ("bert", {"pooler_type": name})
            for name in POOLER_TYPES
            if POOLERS[name].mode
        ),
        ("bert", {"mlp_only_train": True}),
        ("distilbert", {"pooler_type": "cls"}),
        ("bert", {"pooler_type": "cls", "dense_layers": DENSE_LAYERS}),
        ("distilbert", {"pooler_type": "avg", "dense_layers": DENSE_LAYERS[:1]}),
    ],
)
def test_of_every_pooler(family, settings, saved):
    model, card = read(saved(family, **settings))
    check_examples(card, model.encode(EXAMPLES))


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("bert", "avg_first_last"), ("distilbert", "cls")],
)
def test_of_a_whitening(family, pooler, transformed):
    model, card = read(transformed("whitening", family, pooler_type=pooler))
    check_examples(card, model.encode(EXAMPLES), atol=1e-4)


@pytest.mark.parametrize("lacking", ["avg_no_cls", "flow"])
def test_of_what_sentence_transformers_lacks(lacking, saved, transformed):
    directory = transformed("flow") if lacking == "flow" else saved(pooler_type=lacking)
    model, card = read(directory)
    data = ModelCard(card).data
    assert (
        data.library_name == "transformers"
        and "sentence-transformers" not in data.tags
        and "simcse" in data.tags
    )
    if lacking == "flow":
        assert "simcse_hf.postprocessing.flow.Flow" in (directory / MODULES).read_text()
        assert (
            "sentence-transformers cannot load this model" in card
            and "flow from 32 to 32 dimensions" in card
        )
        assert "{li-etal-2020-sentence," in card
    else:
        assert "sentence-transformers has no such pooling" in card
    check_examples(
        card,
        model.encode(EXAMPLES),
        LIBRARIES[:1] if lacking == "flow" else LIBRARIES[::2],
    )


def test_cuts_texts_where_the_model_does(directory):
    SimCSE(directory, device="cpu", max_length=8).save_pretrained(directory)
    card = write_card(directory).read_text()
    assert (
        "| longest text | 8 tokens |" in card
        and "max_length=8," in card
        and "| `max_length`" not in card
    )


def test_of_a_model_with_a_default_prompt(saved):
    prompts = {"query": "the big ", "passage": "a small "}
    model, card = read(
        saved(pooler_type="avg", prompts=prompts, default_prompt_name="query")
    )
    assert 'texts = ["the big " + text for text in texts]' in card
    check_examples(with_transformers(card), model.encode(EXAMPLES), LIBRARIES[2:])


def test_of_a_model_with_prompts_for_queries_and_documents_and_the_dot_product(saved):
    prompts = {"query": "the big ", "document": "a small "}
    model, card = read(
        saved(pooler_type="avg", prompts=prompts, similarity_fn_name="dot")
    )
    assert (
        card.count("model.encode_query(") == card.count("model.encode_document(") == 2
    )
    assert "| similarity | dot |" in card and "model.encode(" not in card
    wanted = torch.as_tensor(model.encode_document(EXAMPLES))
    for block in blocks(card)[:2]:
        variables = {}
        exec(block, variables)
        torch.testing.assert_close(
            torch.as_tensor(variables["documents"]), wanted, atol=1e-5, rtol=0
        )
    check_examples(
        with_transformers(card),
        torch.nn.functional.normalize(wanted, dim=-1),
        LIBRARIES[2:],
    )
