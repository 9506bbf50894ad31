"""IS-BERT: every token is compared with every sentence of the global batch, and padding with none."""

from types import SimpleNamespace

import pytest
import torch
from card_helpers import EXAMPLES, check_examples
from conftest import random_batch
from model_helpers import unused
from objective_helpers import assert_opens_in_transformers, assert_same, model_of
from torch.nn.functional import conv1d, softplus
from trainer_helpers import refuses

from simcse_hf import SimCSE
from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.publishing.card import write_card


def slow_features(convolutions, states, lengths):
    """The features of the tokens of each sentence, as if it were alone and not padded."""
    features = []
    for sentence, length in zip(states, lengths, strict=True):
        alone = sentence[:length].T
        found = [conv1d(alone, each.weight, each.bias, padding=each.kernel_size[0] // 2) for each in convolutions]
        features.append(torch.cat(found).relu().T)
    return features


def slow_loss(features, sentences):
    """The mean over the tokens and their own sentences, and that over the tokens and the others."""
    positive = []
    negative = []
    for own, tokens in enumerate(features):
        for number, sentence in enumerate(sentences):
            scores = tokens @ sentence
            if number == own:
                positive.append(softplus(-scores))
            else:
                negative.append(softplus(scores))
    return torch.cat(positive).mean() + torch.cat(negative).mean()


# --- the objective ---


def encoded(vectors, states, lengths):
    """A batch of rows of one sentence."""
    is_token = torch.arange(states.shape[1]) < torch.tensor(lengths)[:, None]
    mask = {"attention_mask": is_token.long()[:, None]}
    return EncodedBatch(vectors[:, None], mask, None, states[:, None])


@pytest.mark.parametrize("lengths", [[2, 2], [3, 1, 5], [7, 4, 1, 6]])
@pytest.mark.parametrize("dim", [3, 8])
def test_loss_and_gradient_match_a_slow_reference(lengths, dim):
    objective = build_objective("is_bert", dim)
    objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    objective.double()
    vectors = torch.randn(len(lengths), dim, dtype=torch.float64, requires_grad=True)
    padding = 2
    shape = (len(lengths), max(lengths) + padding, dim)
    states = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    loss = objective(encoded(vectors, states, lengths))
    features = slow_features(objective.ngrams.convolutions, states, lengths)
    layer = objective.to_global
    sentences = [layer.weight @ vector + layer.bias for vector in vectors]
    leaves = [vectors, states, *objective.parameters()]
    assert_same(loss, slow_loss(features, sentences), leaves)


# --- the paper's embedding: the mean of the local features ---


def ngram_model(model_type="bert", **settings):
    return model_of("is_bert", model_type=model_type, pooler_type="ngrams", **settings)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize("unpadded", [True, False])
def test_with_the_pooler_ngrams_the_embedding_and_the_loss_are_the_papers(model_type, unpadded):
    model = ngram_model(model_type)
    model.unpadded = unpadded
    batch = random_batch(4, 1)
    lengths = batch["attention_mask"].sum(-1).flatten().tolist()
    states = []  # one text at a time and without padding
    for ids, length in zip(batch["input_ids"][:, 0], lengths, strict=True):
        states.append(model.base_model(input_ids=ids[None, :length]).last_hidden_state[0])
    convolutions = model.ngram_head.ngrams.convolutions
    assert [each.out_channels for each in convolutions] == [11, 11, 10], "they fill the width of the encoder"
    features = slow_features(convolutions, states, lengths)
    sentences = [tokens.mean(0) for tokens in features]
    output = model(**batch)
    torch.testing.assert_close(output.sentence_embeddings[:, 0], torch.stack(sentences))
    torch.testing.assert_close(output.loss, slow_loss(features, sentences), rtol=1e-8, atol=0)
    output.loss.backward()
    assert not unused(model)
    assert not list(model.objective.parameters())


def test_the_papers_pooler_refuses_leading_dimensions():
    with refuses("train without matryoshka_dims"):
        ngram_model(matryoshka_dims=[16])


# --- saved and loaded ---


def test_a_model_with_the_pooler_is_saved_with_its_convolutions(tokenizer, tmp_path, caplog):
    model = ngram_model().float().eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "no pooling like 'ngrams'" in caplog.text
    assert "ngrams" in (tmp_path / "modules.json").read_text(), "sentence-transformers does not open it without us"
    simcse = SimCSE(tmp_path)
    ids = tokenizer(EXAMPLES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(ids["input_ids"], ids["attention_mask"]).sentence_embeddings
    torch.testing.assert_close(simcse.encode(EXAMPLES, normalize_embeddings=False), expected, rtol=0, atol=1e-5)
    assert_opens_in_transformers(tmp_path)
    card = write_card(tmp_path, repo_id=str(tmp_path)).read_text()
    check_examples(card, simcse.encode(EXAMPLES), ["simcse_hf", "transformers"])
    (tmp_path / "ngrams/model.safetensors").unlink()
    with refuses("'ngrams'"):
        SimCSE(tmp_path)
