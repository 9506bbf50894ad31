"""IS-BERT: every token is compared with every sentence of the global batch, and padding with none."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import random_batch
from model_helpers import unused
from objective_helpers import (
    assert_opens_in_transformers,
    assert_same,
    embeddings_of_card,
    model_of,
)

from simcse_hf import SimCSE
from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.publishing.card import write_card

#: Those of the sentences of a batch, in tokens.
LENGTHS = [[2, 2], [3, 1, 5], [7, 4, 1, 6]]


def slow_convolution(convolution, states, token):
    """The features of one token: the window around it, with zeros beyond the ends of the sentence."""
    window = convolution.kernel_size[0]
    total = convolution.bias
    for offset in range(window):
        position = token + offset - window // 2
        if 0 <= position < len(states):
            total = total + convolution.weight[:, :, offset] @ states[position]
    return total.clamp(min=0)


def slow_features(convolutions, states, lengths):
    """(sentence, features) of each token."""
    tokens = []
    for sentence, length in enumerate(lengths):
        without_padding = states[sentence][:length]
        for token in range(length):
            features = [slow_convolution(convolution, without_padding, token) for convolution in convolutions]
            tokens.append((sentence, torch.cat(features)))
    return tokens


def slow_loss(tokens, sentences):
    """The mean over the tokens and their own sentences, and that over the tokens and the others."""
    positive = []
    negative = []
    for own, features in tokens:
        for number, sentence in enumerate(sentences):
            score = features @ sentence
            if number == own:
                positive.append((1 + (-score).exp()).log())
            else:
                negative.append((1 + score.exp()).log())
    return sum(positive) / len(positive) + sum(negative) / len(negative)


# --- the objective ---


def drawn_vectors(lengths, dim):
    return torch.randn(len(lengths), dim, dtype=torch.float64).requires_grad_()


def drawn_states(lengths, dim, padding=2):
    """Hidden states of the tokens, and of some padding behind the longest sentence."""
    shape = (len(lengths), max(lengths) + padding, dim)
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def encoded(vectors, states, lengths):
    """A batch of rows of one sentence."""
    is_token = torch.arange(states.shape[1]) < torch.tensor(lengths)[:, None]
    mask = {"attention_mask": is_token.long()[:, None]}
    return EncodedBatch(vectors[:, None], mask, None, states[:, None])


def objective_of(dim):
    """The objective of a model whose pooler is not `ngrams`."""
    objective = build_objective("is_bert", dim)
    objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    return objective.double()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dim", [3, 8])
def test_loss_and_gradient_match_a_slow_reference(lengths, dim):
    objective = objective_of(dim)
    vectors = drawn_vectors(lengths, dim)
    states = drawn_states(lengths, dim)
    loss = objective(encoded(vectors, states, lengths))
    tokens = slow_features(objective.ngrams.convolutions, states, lengths)
    layer = objective.to_global
    sentences = [layer.weight @ vector + layer.bias for vector in vectors]
    leaves = [vectors, states, *objective.parameters()]
    assert_same(loss, slow_loss(tokens, sentences), leaves)


# --- the paper's embedding: the mean of the local features ---


def ngram_model(model_type="bert", **settings):
    return model_of("is_bert", model_type=model_type, pooler_type="ngrams", **settings)


@pytest.fixture
def batch():
    """Four rows of one text."""
    return random_batch(4, 1)


@pytest.fixture
def slow_tokens(model, batch):
    """(text, features) of each token, one text at a time and without padding."""
    lengths = batch["attention_mask"].sum(-1).flatten().tolist()
    states = []
    for ids, length in zip(batch["input_ids"][:, 0], lengths, strict=True):
        output = model.base_model(input_ids=ids[None, :length])
        states.append(output.last_hidden_state[0])
    return slow_features(model.ngram_head.ngrams.convolutions, states, lengths)


@pytest.fixture
def slow_embeddings(slow_tokens):
    """The mean of the features of each text."""
    of_text = {}
    for text, features in slow_tokens:
        of_text.setdefault(text, []).append(features)
    return torch.stack([torch.stack(each).mean(0) for each in of_text.values()])


@pytest.fixture
def model(model_type, unpadded):
    model = ngram_model(model_type)
    model.unpadded = unpadded
    return model


@pytest.fixture
def output(model, batch):
    return model(**batch)


ENCODERS = pytest.mark.parametrize("model_type", ["bert", "distilbert"])
WITH_AND_WITHOUT_PADDING = pytest.mark.parametrize("unpadded", [True, False])


@ENCODERS
@WITH_AND_WITHOUT_PADDING
def test_with_the_pooler_ngrams_an_embedding_is_the_mean_of_its_tokens(output, slow_embeddings):
    torch.testing.assert_close(output.sentence_embeddings[:, 0], slow_embeddings)


@ENCODERS
@WITH_AND_WITHOUT_PADDING
def test_with_the_pooler_ngrams_the_loss_is_the_papers(output, slow_tokens, slow_embeddings):
    expected = slow_loss(slow_tokens, slow_embeddings)
    torch.testing.assert_close(output.loss, expected, rtol=1e-8, atol=0)


@ENCODERS
@WITH_AND_WITHOUT_PADDING
def test_with_the_pooler_ngrams_every_parameter_has_a_gradient(output, model):
    output.loss.backward()
    assert not unused(model)


@pytest.fixture(scope="module")
def untrained():
    """A BERT model with the pooler."""
    return ngram_model().float().eval()


def test_with_the_pooler_ngrams_the_objective_has_no_layers_of_its_own(untrained):
    assert not list(untrained.objective.parameters())


def test_the_features_of_the_three_windows_fill_the_width_of_the_encoder(untrained):
    convolutions = untrained.ngram_head.ngrams.convolutions
    assert [each.out_channels for each in convolutions] == [11, 11, 10]


def test_the_papers_pooler_refuses_leading_dimensions():
    with pytest.raises(ValueError, match="train without matryoshka_dims"):
        ngram_model(matryoshka_dims=[16])


# --- saved and loaded ---

TEXTS = ["The cat sat on the mat.", "A dog ran."]


@pytest.fixture(scope="module")
def saved(untrained, tokenizer, tmp_path_factory):
    """The folder of a model with the pooler."""
    folder = tmp_path_factory.mktemp("is_bert")
    untrained.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_with_the_pooler_is_saved_with_a_warning(untrained, save_checkpoint, caplog):
    """sentence-transformers cannot read the pooler."""
    save_checkpoint(untrained)
    assert "no pooling like 'ngrams'" in caplog.text


def test_the_modules_of_sentence_transformers_name_the_pooler(saved):
    assert "ngrams" in (saved / "modules.json").read_text()


def test_the_convolutions_are_saved_beside_the_weights_and_loaded_by_simcse(saved, untrained):
    simcse = SimCSE(saved)
    embeddings = simcse.encode(TEXTS, normalize_embeddings=False)
    ids = simcse.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = untrained(ids["input_ids"], ids["attention_mask"])
    torch.testing.assert_close(embeddings, output.sentence_embeddings, rtol=0, atol=1e-5)


def test_a_model_with_the_pooler_opens_in_transformers(saved):
    assert_opens_in_transformers(saved)


def test_the_program_of_the_card_embeds_texts_with_transformers_alone(saved):
    card = write_card(saved, repo_id=str(saved)).read_text()
    embeddings, texts = embeddings_of_card(card)
    expected = SimCSE(saved).encode(texts)
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)


def test_a_model_that_lacks_the_weights_of_the_pooler_is_refused(saved, tmp_path):
    folder = tmp_path / "incomplete"
    shutil.copytree(saved, folder)
    (folder / "ngrams" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="lacks the weights of its pooler 'ngrams'"):
        SimCSE(folder)
