"""IS-BERT: every token is compared with every sentence of the global batch, and padding with none."""

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
from simcse_hf.publishing import write_card

LENGTHS = [[2, 2], [3, 1, 5], [7, 4, 1, 6]]


def slow_features(convolutions, states, lengths):
    """(sentence, features) of each token: windows cut out by hand, zeros beyond the ends of the sentence."""
    tokens = []
    for s, length in enumerate(lengths):
        for t in range(length):
            features = []
            for convolution in convolutions:
                window = convolution.kernel_size[0]
                total = convolution.bias
                for offset in range(window):
                    position = t + offset - window // 2
                    if 0 <= position < length:
                        total = (
                            total
                            + convolution.weight[:, :, offset] @ states[s][position]
                        )
                features.append(total.clamp(min=0))
            tokens.append((s, torch.cat(features)))
    return tokens


def slow_loss(tokens, sentences):
    positive, negative = [], []
    for s, features in tokens:
        for other, sentence in enumerate(sentences):
            score = features @ sentence
            if s == other:
                positive.append((1 + (-score).exp()).log())
            else:
                negative.append((1 + score.exp()).log())
    return sum(positive) / len(positive) + sum(negative) / len(negative)


def mask_of(lengths, width):
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def embedded(vectors, states, lengths):
    mask = mask_of(lengths, states.shape[1])
    return EncodedBatch(
        vectors[:, None], {"attention_mask": mask[:, None]}, None, states[:, None]
    )


def drawn(lengths, dim, padding=2):
    states = torch.randn(len(lengths), max(lengths) + padding, dim, dtype=torch.float64)
    return torch.randn(len(lengths), dim, dtype=torch.float64), states


def objective_of(dim):
    objective = build_objective("is_bert", dim)
    objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    return objective.double()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dim", [3, 8])
def test_loss_and_gradient_match_a_slow_reference(lengths, dim):
    objective = objective_of(dim)
    vectors, states = (x.requires_grad_() for x in drawn(lengths, dim))
    loss = objective(embedded(vectors, states, lengths))
    tokens = slow_features(objective.ngrams.convolutions, states, lengths)
    sentences = [
        objective.to_global.weight @ vector + objective.to_global.bias
        for vector in vectors
    ]
    assert_same(
        loss, slow_loss(tokens, sentences), [vectors, states, *objective.parameters()]
    )


# --- the paper's embedding: the mean of the local features ---


def ngram_model(model_type="bert", **settings):
    return model_of("is_bert", model_type=model_type, pooler_type="ngrams", **settings)


def slow_embeddings(model, ids, lengths):
    """The mean of the tokens' n-gram features, one text at a time and without padding, and the features."""
    rows = zip(ids, lengths, strict=True)
    states = [
        model.base_model(input_ids=row[None, :n]).last_hidden_state[0]
        for row, n in rows
    ]
    tokens = slow_features(model.ngram_head.ngrams.convolutions, states, lengths)
    features = [
        torch.stack([x for s, x in tokens if s == row]) for row in range(len(ids))
    ]
    return torch.stack([x.mean(0) for x in features]), tokens


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize("unpadded", [True, False])
def test_with_the_pooler_ngrams_the_loss_is_the_papers(model_type, unpadded):
    model = ngram_model(model_type)
    model.unpadded = unpadded
    batch = random_batch(4, 1)
    lengths = batch["attention_mask"][:, 0].sum(-1).tolist()
    output = model(**batch)
    sentences, tokens = slow_embeddings(model, batch["input_ids"][:, 0], lengths)
    torch.testing.assert_close(output.sentence_embeddings[:, 0], sentences)
    torch.testing.assert_close(
        output.loss, slow_loss(tokens, sentences), rtol=1e-8, atol=0
    )
    output.loss.backward()
    assert not unused(model)
    assert not list(model.objective.parameters())
    assert [c.out_channels for c in model.ngram_head.ngrams.convolutions] == [
        11,
        11,
        10,
    ]


def test_the_convolutions_are_saved_beside_the_weights_and_loaded_by_simcse(
    save_checkpoint, caplog
):
    model = ngram_model().float().eval()
    folder = save_checkpoint(model)
    assert (
        "no pooling like 'ngrams'" in caplog.text
        and "ngrams" in (folder / "modules.json").read_text()
    )
    texts = ["The cat sat on the mat.", "A dog ran."]
    simcse = SimCSE(folder)
    embeddings = simcse.encode(texts, normalize_embeddings=False)
    ids = simcse.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(ids["input_ids"], ids["attention_mask"]).sentence_embeddings
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
    assert_opens_in_transformers(folder)
    of_card, texts = embeddings_of_card(
        write_card(folder, repo_id=str(folder)).read_text()
    )
    torch.testing.assert_close(of_card, SimCSE(folder).encode(texts), rtol=0, atol=1e-5)
    (folder / "ngrams" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="lacks the weights of its pooler 'ngrams'"):
        SimCSE(folder)


def test_the_papers_pooler_refuses_leading_dimensions():
    with pytest.raises(ValueError, match="train without matryoshka_dims"):
        ngram_model(matryoshka_dims=[16])
