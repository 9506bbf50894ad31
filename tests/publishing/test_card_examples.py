"""The code of a card gives the embeddings of the model, with every library that the card names."""

from types import SimpleNamespace

import pytest
import torch
from card_helpers import EXAMPLES, LIBRARIES, blocks, check_examples
from huggingface_hub import ModelCard
from publishing_fixtures import save_random, save_transformed

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


@pytest.mark.parametrize("pooler_type", OF_SENTENCE_TRANSFORMERS)
def test_the_code_of_a_card_gives_the_embeddings_of_every_pooler(pooler_type, saved):
    model, card = read(saved("bert", pooler_type=pooler_type))
    check_examples(card, model.encode(EXAMPLES))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param("bert", {"mlp_only_train": True}, id="in training only"),
        pytest.param("distilbert", {"pooler_type": "cls"}, id="in its own file"),
        pytest.param(
            "bert",
            {"pooler_type": "cls", "dense_layers": DENSE_LAYERS},
            id="and dense layers",
        ),
        pytest.param(
            "distilbert",
            {"pooler_type": "avg", "dense_layers": DENSE_LAYERS[:1]},
            id="replaced by a dense layer",
        ),
    ],
)
def test_the_code_of_a_card_gives_the_embeddings_of_a_model_with_a_head(family, settings, saved):
    model, card = read(saved(family, **settings))
    check_examples(card, model.encode(EXAMPLES))


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("bert", "avg_first_last"), ("distilbert", "cls")],
)
def test_the_code_of_a_card_gives_the_embeddings_of_a_whitening(family, pooler, transformed):
    model, card = read(transformed("whitening", family, pooler_type=pooler))
    check_examples(card, model.encode(EXAMPLES), atol=1e-4)


# --- what sentence-transformers lacks ---

POOLER = "avg_no_cls"
LACKING = pytest.mark.parametrize("lacking", [POOLER, "flow"], scope="module")


@pytest.fixture(scope="module")
def unsupported(lacking, tokenizer, tmp_path_factory):
    """The directory of a model with a pooler, or a flow, that sentence-transformers lacks; the model; its card."""
    folder = tmp_path_factory.mktemp("unsupported")
    if lacking == "flow":
        directory = save_transformed(folder, tokenizer, "flow")
    else:
        directory = save_random(folder, tokenizer, pooler_type=lacking)
    model, card = read(directory)
    return SimpleNamespace(directory=directory, model=model, card=card)


@LACKING
def test_the_library_of_a_model_that_sentence_transformers_cannot_load_is_transformers(
    unsupported,
):
    assert ModelCard(unsupported.card).data.library_name == "transformers"


@LACKING
def test_a_model_that_sentence_transformers_cannot_load_does_not_have_its_tag(
    unsupported,
):
    assert "sentence-transformers" not in ModelCard(unsupported.card).data.tags


@LACKING
def test_a_model_that_sentence_transformers_cannot_load_has_the_tag_simcse(unsupported):
    assert "simcse" in ModelCard(unsupported.card).data.tags


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (POOLER, "sentence-transformers has no such pooling"),
        ("flow", "sentence-transformers cannot load this model"),
    ],
    scope="module",
)
def test_the_card_says_that_sentence_transformers_cannot_load_a_model(unsupported, words):
    assert words in unsupported.card


@pytest.mark.parametrize(
    ("lacking", "libraries"),
    [
        (POOLER, ["simcse_hf", "transformers"]),
        ("flow", ["simcse_hf"]),
    ],
    scope="module",
)
def test_the_code_of_a_card_uses_the_libraries_that_can_load_a_model(unsupported, libraries):
    expected = unsupported.model.encode(EXAMPLES)
    check_examples(unsupported.card, expected, libraries)


@pytest.mark.parametrize("lacking", ["flow"], scope="module")
@pytest.mark.parametrize("words", ["flow from 32 to 32 dimensions", "{li-etal-2020-sentence,"])
def test_the_card_describes_a_flow(unsupported, words):
    assert words in unsupported.card


@pytest.mark.parametrize("lacking", ["flow"], scope="module")
def test_a_flow_is_a_module_of_this_package(unsupported):
    modules = (unsupported.directory / MODULES).read_text()
    assert "simcse_hf.postprocessing.flow.Flow" in modules


# --- lengths and prompts ---


@pytest.fixture
def short(directory):
    """The card of a model that reads 8 tokens."""
    SimCSE(directory, device="cpu", max_length=8).save_pretrained(directory)
    return write_card(directory).read_text()


@pytest.mark.parametrize("words", ["| longest text | 8 tokens |", "max_length=8,"])
def test_the_code_of_a_card_cuts_texts_where_the_model_does(short, words):
    assert words in short


def test_the_length_of_a_model_is_no_hyperparameter(short):
    assert "| `max_length`" not in short


@pytest.fixture
def with_default_prompt(saved):
    """A model with a default prompt, and its card."""
    prompts = {"query": "the big ", "passage": "a small "}
    settings = {"prompts": prompts, "default_prompt_name": "query"}
    return read(saved(pooler_type="avg", **settings))


def test_the_code_of_a_card_puts_the_default_prompt_before_texts(with_default_prompt):
    _, card = with_default_prompt
    assert 'texts = ["the big " + text for text in texts]' in card


def test_the_code_of_a_card_gives_the_embeddings_of_a_model_with_a_default_prompt(
    with_default_prompt,
):
    model, card = with_default_prompt
    expected = model.encode(EXAMPLES)
    check_examples(with_transformers(card), expected, ["transformers"])


@pytest.fixture
def with_two_prompts(saved):
    """A model with prompts for queries and documents and the dot product, and its card."""
    prompts = {"query": "the big ", "document": "a small "}
    settings = {"prompts": prompts, "similarity_fn_name": "dot"}
    return read(saved(pooler_type="avg", **settings))


@pytest.fixture
def documents(with_two_prompts):
    """The embeddings of the examples as documents."""
    model, _ = with_two_prompts
    return torch.as_tensor(model.encode_document(EXAMPLES))


@pytest.mark.parametrize("method", ["encode_query", "encode_document"])
def test_the_code_of_a_card_encodes_queries_and_documents_with_both_libraries(with_two_prompts, method):
    _, card = with_two_prompts
    assert card.count(f"model.{method}(") == 2


def test_the_code_of_a_card_encodes_nothing_without_a_prompt(with_two_prompts):
    _, card = with_two_prompts
    assert "model.encode(" not in card


def test_the_card_names_the_dot_product(with_two_prompts):
    _, card = with_two_prompts
    assert "| similarity | dot |" in card


@pytest.mark.parametrize("number", [0, 1], ids=LIBRARIES[:2])
def test_the_code_of_a_card_gives_the_embeddings_of_documents(with_two_prompts, documents, number):
    _, card = with_two_prompts
    variables = {}
    exec(blocks(card)[number], variables)
    found = torch.as_tensor(variables["documents"])
    torch.testing.assert_close(found, documents, atol=1e-5, rtol=0)


def test_the_code_for_transformers_gives_the_embeddings_of_documents(with_two_prompts, documents):
    _, card = with_two_prompts
    unit = torch.nn.functional.normalize(documents, dim=-1)
    check_examples(with_transformers(card), unit, ["transformers"])
