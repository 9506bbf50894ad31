"""PromptBERT: templates around every text, and training without what the templates alone contribute."""

import json

import pytest
import torch
from conftest import CLS, MASK, SEP, VOCABULARY, tiny_config
from datasets import Dataset

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments, SimilarityEvalCallback
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.templates import read_template, template_settings
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.inference.encoding import tokenize_texts
from simcse_hf.objectives import EncodedBatch, TrainingRows
from simcse_hf.publishing import write_card

TEMPLATES = ["the {text} , [MASK] .", "on {text} . [MASK] ,"]  # of equal lengths and different tokens
TEXTS = ["cat sat", "a big dog ran on the mat", "bird", "old man slept", "red house", "woman sang in the tree"]


def id_of(words):
    return [VOCABULARY.index(word) for word in words.split()]


def model_of(tokenizer, model_type="bert", templates=TEMPLATES, dropout=0.0, options=None, **settings):
    torch.manual_seed(3)
    config = tiny_config(model_type, dropout=dropout, initializer_range=0.2)
    model = AutoModelForCL.from_config(
        config,
        pooler_type="mask",
        templates=templates,
        objective="promptbert",
        objective_options={"head": False} if options is None else options,
        **settings,
        **template_settings(templates, tokenizer),
    )
    model.prepare_objective()
    return model.double().train()


def batch_of(tokenizer, texts=TEXTS, templates=TEMPLATES, max_length=20):
    data = tokenize_dataset(Dataset.from_dict({"sent0": texts}), tokenizer, max_length, templates=templates)
    return ContrastiveCollator(tokenizer)(list(data))


def slow_vector(model, ids, positions):
    """Return the hidden state at the mask token of one row with these tokens and positions."""
    hidden = model.base_model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions])).last_hidden_state
    return hidden[0, ids.index(MASK)]


def slow_head(head, vector):
    """Slow reference: tanh(W x + b) entry by entry, or the embedding itself without a head."""
    if head is None:
        return vector
    weight, bias = head[0].weight, head[0].bias
    return torch.stack([torch.tanh((weight[i] * vector).sum() + bias[i]) for i in range(len(bias))])


def slow_loss(model, texts, edges, temperature=0.05):
    columns = []
    for template in ("the {} , [MASK] .", "on {} . [MASK] ,"):
        vectors = []
        for text in texts:
            ids = [CLS, *id_of(template.format(text)), SEP]
            start, end = edges[0], len(ids) - edges[1]
            alone = [(token, t) for t, token in enumerate(ids) if not start <= t < end]
            full = slow_vector(model, ids, list(range(len(ids))))
            without_text = slow_vector(model, [x for x, _ in alone], [t for _, t in alone])
            vectors.append(slow_head(model.objective.head, full - without_text))
        columns.append(vectors)
    total = 0.0
    for i, anchor in enumerate(columns[0]):
        logits = torch.stack([torch.cosine_similarity(anchor, other, dim=0) / temperature for other in columns[1]])
        total = total - torch.log_softmax(logits, 0)[i]
    return total / len(texts)


@pytest.mark.parametrize("unpadded, head", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("texts, temperature", [(TEXTS, 0.05), (TEXTS[:2], 0.5), (TEXTS[1:5], 0.2)])
def test_loss_and_gradient_match_a_slow_reference(tokenizer, texts, temperature, unpadded, head):
    model = model_of(tokenizer, temperature=temperature, options={"head": head})
    model.unpadded = unpadded
    output = model(**batch_of(tokenizer, texts))
    expected = slow_loss(model, texts, [2, 4], temperature)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-9)
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(output.loss, weights, allow_unused=True)
    exact = torch.autograd.grad(expected, weights, allow_unused=True)
    assert sum(x is not None for x in gradients) > 10
    for one, other in zip(gradients, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("model_type", ["roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_the_text_has_no_influence_on_template_embeddings_in_any_encoder(tokenizer, model_type):
    """Two batches with the same lengths but different words have the same template embeddings."""
    model = model_of(tokenizer, model_type)
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


def test_a_template_is_kept_whole_where_the_tokenizers_limit_cuts_the_text(tokenizer):
    (ids,) = tokenize_texts(tokenizer, ["cat " * 50], 38, TEMPLATES)  # the tokenizer allows 40 tokens in all
    assert len(ids) == 40 and ids[-5:] == [*id_of("cat , [MASK] ."), SEP]
    with pytest.raises(ValueError, match="the template has 43 tokens, and the tokenizer allows 40"):
        tokenize_texts(tokenizer, ["cat"], 8, ["the " * 40 + "{text} [MASK]"])


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


def run(tmp_path, tokenizer, **changes):
    torch.manual_seed(1)
    model = AutoModelForCL.from_config(
        tiny_config(initializer_range=0.2), pooler_type="mask", templates=TEMPLATES, objective="promptbert", **changes
    )
    pairs = ScoredPairs("stsb", TEXTS[:4], TEXTS[2:], [0.0, 1.0, 5.0, 3.0])
    args = SimCSETrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=3,
        max_steps=2,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    data = Dataset.from_dict({"sent0": TEXTS})
    return SimCSETrainer(model, args, data, processing_class=tokenizer, dev_set=pairs)


def test_a_trained_model_is_saved_and_loaded_with_its_template(tmp_path, tokenizer):
    trainer = run(tmp_path, tokenizer)
    trainer.train()
    evaluated = trainer.evaluate()
    trainer.save_model()
    section = json.loads((tmp_path / "run" / "config.json").read_text())["simcse"]["pooling"]
    assert (section["templates"], section["mask_token_id"], section["template_edges"]) == (
        TEMPLATES,
        MASK,
        [[2, 4], [2, 4]],
    )
    assert not (tmp_path / "run" / "modules.json").exists()
    simcse = SimCSE(tmp_path / "run")
    vectors = simcse.encode(TEXTS, normalize_embeddings=False)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = [CLS, *id_of(f"the {text} , [MASK] ."), SEP]
        torch.testing.assert_close(vector, slow_vector(simcse.model, ids, list(range(len(ids)))), rtol=0, atol=1e-5)
    pairs = ScoredPairs("stsb", TEXTS[:4], TEXTS[2:], [0.0, 1.0, 5.0, 3.0])
    again = SimilarityEvalCallback(pairs).evaluate(simcse.model, tokenizer)
    assert again["stsb_spearman"] == pytest.approx(evaluated["eval_stsb_spearman"], abs=1e-4)
    plain = SimCSE(tmp_path / "run", pooler_type="avg")
    ids = torch.tensor([[CLS, *id_of(TEXTS[0]), SEP]])
    expected = plain.model.base_model(ids).last_hidden_state[0].mean(0)
    torch.testing.assert_close(plain.encode(TEXTS[0], normalize_embeddings=False), expected, rtol=0, atol=1e-5)


def test_the_model_card_shows_how_to_use_the_template(tmp_path, tokenizer):
    run(tmp_path, tokenizer).save_model()
    card = write_card(tmp_path / "run", repo_id=str(tmp_path / "run")).read_text()
    assert TEMPLATES[0] in card and "from sentence_transformers" not in card
    code = card.split("With `transformers` alone:")[1].split("```python")[1].split("```")[0]
    names = {}
    exec(code, names)
    ours = SimCSE(tmp_path / "run").encode(["A cat sits on the mat.", "A feline rests on a rug."])
    torch.testing.assert_close(names["embeddings"], ours, rtol=0, atol=1e-5)


def test_settings_that_contradict_each_other_are_refused_before_training(tokenizer):
    with pytest.raises(ValueError, match="templates need each other"):
        AutoModelForCL.from_config(tiny_config(), pooler_type="mask")
    with pytest.raises(ValueError, match="templates need each other"):
        AutoModelForCL.from_config(tiny_config(), pooler_type="avg", templates=TEMPLATES)
    with pytest.raises(ValueError, match="pooler_type 'mask' and templates"):
        AutoModelForCL.from_config(tiny_config(), pooler_type="avg", objective="promptbert").prepare_objective()
    bare = Dataset.from_dict({"input_ids": [[[CLS, 7, SEP]]]})
    objective = model_of(tokenizer).objective
    with pytest.raises(ValueError, match="row 1 .* fewer tokens than the template"):
        objective.check(TrainingRows(1, 4, dataset=bare))
    longest = max(sum(edges) for edges in objective.template_edges)
    empty_text = Dataset.from_dict({"input_ids": [[[CLS] * longest]]})  # only the tokens of the template
    objective.check(TrainingRows(1, 4, dataset=empty_text))


def test_token_ids_without_a_mask_token_are_refused(tokenizer):
    with pytest.raises(ValueError, match="text 0 of the batch holds 0"):
        model_of(tokenizer).embed(torch.tensor([[CLS, 7, SEP]]))
