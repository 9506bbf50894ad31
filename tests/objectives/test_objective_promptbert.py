"""PromptBERT: templates around every text, and training without what the templates alone contribute."""

import pytest
import torch
from conftest import CLS, MASK, SEP, tiny_config
from datasets import Dataset
from objective_helpers import TEMPLATES, TEXTS, assert_same, full_and_alone, id_of, slow_info_nce
from objective_helpers import batch_of_templates as batch_of
from objective_helpers import promptbert as model_of

from simcse_hf import AutoModelForCL
from simcse_hf.data.templates import read_template
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.inference.encoding import tokenize_texts
from simcse_hf.objectives import EncodedBatch, TrainingRows


def slow_loss(model, texts, edges, temperature=0.05):
    columns = []
    for template in ("the {} , [MASK] .", "on {} . [MASK] ,"):
        vectors = []
        for text in texts:
            full, alone = full_and_alone(model, template, text, edges)
            vectors.append(full - alone)
            if model.objective.head is not None:
                weight, bias = model.objective.head[0].weight, model.objective.head[0].bias
                vectors[-1] = torch.tanh(weight @ vectors[-1] + bias)
        columns.append(vectors)
    return slow_info_nce(list(zip(*columns, strict=True)), temperature)


@pytest.mark.parametrize("unpadded, head", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("texts, temperature", [(TEXTS, 0.05), (TEXTS[:2], 0.5), (TEXTS[1:5], 0.2)])
def test_loss_and_gradient_match_a_slow_reference(tokenizer, texts, temperature, unpadded, head):
    model = model_of(tokenizer, temperature=temperature, options={"head": head})
    model.unpadded = unpadded
    loss, expected = model(**batch_of(tokenizer, texts)).loss, slow_loss(model, texts, [2, 4], temperature)
    assert_same(loss, expected, [p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("model_type", ["roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_the_text_has_no_influence_on_template_embeddings_in_any_encoder(tokenizer, model_type):
    """Two batches with the same lengths but different words have the same template embeddings."""
    model = model_of(tokenizer, model_type=model_type)
    alone = []
    for texts in (["cat sat on", "a dog", "tree"], ["mat red big", "old small", "house"]):
        batch = batch_of(tokenizer, texts)
        vectors = model(**batch, return_loss=False).sentence_embeddings
        alone.append(vectors - model.objective.prepare(EncodedBatch(vectors, batch, model)).embeddings)
    torch.testing.assert_close(alone[0], alone[1], rtol=0, atol=1e-10)
    assert (alone[0][:, 0] - alone[0][:, 1]).abs().max() > 1e-3  # of two templates
    assert (alone[0][0] - alone[0][1]).abs().max() > 1e-6 or model_type == "mpnet"  # of two lengths


# --- templates ---


def test_max_seq_length_counts_the_text_and_not_the_template(tokenizer):
    expected = [CLS, *id_of("the cat cat , [MASK] ."), SEP]
    assert tokenize_texts(tokenizer, ["cat cat cat cat"], 2, TEMPLATES) == [expected]
    assert tokenize_texts(tokenizer, ["cat cat"], None, TEMPLATES) == [expected]
    assert tokenize_texts(tokenizer, [], 2, TEMPLATES) == []
    rows = tokenize_dataset(Dataset.from_dict({"sent0": ["cat " * 9]}), tokenizer, 3, templates=TEMPLATES)
    assert [len(ids) for ids in rows["input_ids"][0]] == [3 + 6, 3 + 6]


def test_a_mask_token_in_a_text_becomes_the_unknown_token(tokenizer):
    (ids,) = tokenize_texts(tokenizer, ["cat [MASK] dog"], None, TEMPLATES)
    assert ids.count(MASK) == 1 and ids == [CLS, *id_of("the cat [UNK] dog , [MASK] ."), SEP]


@pytest.mark.parametrize("template", ["no text [MASK]", "{text} only", "{text} {text} [MASK]", "[MASK] {text} [MASK]"])
def test_an_invalid_template_is_refused(template, tokenizer):
    with pytest.raises(ValueError, match="once and .* once, got"):
        read_template(template, tokenizer)


def test_anchors_use_the_first_template_and_other_columns_the_last(tokenizer):
    words = {"sent0": ["cat", "dog"], "sent1": ["man", "mat"], "sent2": ["red", "big"]}
    rows = tokenize_dataset(Dataset.from_dict(words), tokenizer, 20, templates=TEMPLATES)["input_ids"][:]
    texts = ["the cat , [MASK] .", "on man . [MASK] ,", "on red . [MASK] ,"]
    assert rows[0] == [[CLS, *id_of(text), SEP] for text in texts]
    single = Dataset.from_dict({"sent0": ["cat"]})
    assert len(tokenize_dataset(single, tokenizer, 20, templates=TEMPLATES)["input_ids"][0]) == 2
    assert len(tokenize_dataset(single, tokenizer, 20, templates=TEMPLATES[:1])["input_ids"][0]) == 1
    grouped = Dataset.from_dict({"texts": [["cat", "dog"]], "relations": [[0]]})
    with pytest.raises(ValueError, match="relations.*drop templates"):
        tokenize_dataset(grouped, tokenizer, 20, templates=TEMPLATES)


# --- training and use ---


def test_settings_that_contradict_each_other_are_refused_before_training(tokenizer):
    for objective, settings in (
        ("simcse", {"pooler_type": "mask"}),
        ("simcse", {"pooler_type": "avg", "templates": TEMPLATES}),
        ("promptbert", {"pooler_type": "avg"}),
    ):
        with pytest.raises(ValueError, match="templates"):
            AutoModelForCL.from_config(tiny_config(), objective=objective, **settings).prepare_objective()
    bare = Dataset.from_dict({"input_ids": [[[CLS, 7, SEP]]]})
    objective = model_of(tokenizer).objective
    with pytest.raises(ValueError, match="row 1 .* fewer tokens than the template"):
        objective.check(TrainingRows(1, 4, [], bare))
    longest = max(sum(edges) for edges in objective.template_edges)
    empty_text = Dataset.from_dict({"input_ids": [[[CLS] * longest]]})  # only the tokens of the template
    objective.check(TrainingRows(1, 4, [], empty_text))


def test_token_ids_without_a_mask_token_are_refused(tokenizer):
    with pytest.raises(ValueError, match="text 0 of the batch holds 0"):
        model_of(tokenizer).embed(torch.tensor([[CLS, 7, SEP]]))
