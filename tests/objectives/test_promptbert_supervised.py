"""Supervised PromptBERT: the template's own embedding is subtracted in training and at inference."""

import json

import pytest
import torch
import torch.nn.functional as F
from conftest import CLS, SEP, fast_first, tiny_config
from datasets import Dataset
from test_objective_promptbert import TEXTS, id_of, slow_vector
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.templates import template_settings
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.inference.encoding import encode_token_ids, tokenize_texts
from simcse_hf.publishing import write_card
from simcse_hf.publishing.export import export_onnx, export_sentence_transformers

TEMPLATE = ["the {text} , [MASK] ."]
OPTIONS = {"pooler_type": "mask", "templates": TEMPLATE, "objective": "promptbert"}
TRIPLETS = {"sent0": TEXTS, "sent1": TEXTS[::-1], "sent2": ["red tree", *TEXTS[:4], "a bird slept on a small mat ."]}
PAIRS = ScoredPairs("stsb", TEXTS[:4], TEXTS[2:], [0.0, 1.0, 5.0, 3.0])


def model_of(tokenizer, denoising="transform", model_type="bert", dropout=0.0, **settings):
    torch.manual_seed(3)
    config = tiny_config(model_type, dropout=dropout, initializer_range=0.2)
    settings = OPTIONS | {"denoising": denoising} | settings
    model = AutoModelForCL.from_config(config, **settings, **template_settings(settings["templates"], tokenizer))
    with torch.no_grad():  # weights and biases of the layer that differ from 1 and 0
        for parameter in model.template_head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.prepare_objective()
    return model.double()


def batch_of(tokenizer, columns=TRIPLETS):
    data = tokenize_dataset(Dataset.from_dict(columns), tokenizer, 20, templates=TEMPLATE)
    return ContrastiveCollator(tokenizer)(list(data))


def slow_embedding(model, text):
    """The denoised embedding of one text, from two passes over single rows, without padding or masks."""
    ids = [CLS, *id_of(f"the {text} , [MASK] ."), SEP]
    alone = [(token, t) for t, token in enumerate(ids) if not 2 <= t < len(ids) - 4]
    state = slow_vector(model, ids, list(range(len(ids))))
    without_text = slow_vector(model, [x for x, _ in alone], [t for _, t in alone])
    dense = model.template_head.layer.dense
    if model.settings.denoising == "tanh":
        return torch.tanh(dense.weight @ (state - without_text) + dense.bias)
    norm, transformed = model.template_head.layer.LayerNorm, []
    for vector in (state, without_text):
        hidden = dense.weight @ vector + dense.bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        centred = hidden - hidden.mean()
        transformed.append(centred / (centred.pow(2).mean() + norm.eps).sqrt() * norm.weight + norm.bias)
    return transformed[0] - transformed[1]


def slow_loss(model, columns, temperature=0.05):
    anchors, *others = ([slow_embedding(model, text) for text in texts] for texts in columns.values())
    candidates = torch.stack([x for column in others for x in column])
    losses = [
        F.cross_entropy(F.cosine_similarity(anchor[None], candidates) / temperature, torch.tensor(i))
        for i, anchor in enumerate(anchors)
    ]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("denoising, unpadded", fast_first(("transform", True), ("tanh", True), ("transform", False)))
def test_the_loss_of_triplets_and_its_gradient_match_a_slow_reference(tokenizer, denoising, unpadded):
    model = model_of(tokenizer, denoising).train()
    model.unpadded = unpadded
    loss = model(**batch_of(tokenizer)).loss
    expected = slow_loss(model, TRIPLETS)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    weights = [p for p in model.parameters() if p.requires_grad]
    assert sum(p in set(model.template_head.parameters()) for p in weights) == (4 if denoising == "transform" else 2)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    exact = torch.autograd.grad(expected, weights, allow_unused=True)
    for one, other in zip(gradients, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("denoising", ["transform", "tanh"])
def test_embeddings_of_training_equal_those_of_inference_without_dropout(tokenizer, denoising):
    model, batch = model_of(tokenizer, denoising), batch_of(tokenizer)
    in_training = model.train()(**batch).sentence_embeddings
    with torch.no_grad():
        ids = tokenize_texts(tokenizer, TEXTS, 20, TEMPLATE)
        inference = encode_token_ids(model.eval(), ids, tokenizer.pad_token_id, token_budget=24)
        torch.testing.assert_close(in_training[:, 0].float(), inference, rtol=1e-5, atol=1e-6)
        expected = torch.stack([slow_embedding(model, text) for text in TEXTS])
    torch.testing.assert_close(in_training[:, 0], expected, rtol=1e-9, atol=1e-11)


# --- from a checkpoint with a masked-LM head to a saved model ---


@pytest.fixture
def start(tmp_path, tokenizer):
    """A stock masked-LM checkpoint, as bert-base-uncased is one."""
    torch.manual_seed(5)
    model = BertForMaskedLM(tiny_config(initializer_range=0.2))
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    return tmp_path / "start"


def trainer_of(start, tokenizer, directory, **changes):
    args = SimCSETrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=3,
        max_steps=2,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **changes,
    )
    model = AutoModelForCL.from_pretrained(start, denoising="transform", **OPTIONS)
    rows = Dataset.from_dict(TRIPLETS)
    return SimCSETrainer(model, args, rows, processing_class=tokenizer, dev_set=PAIRS)


def test_training_starts_from_the_transform_of_the_checkpoints_masked_lm_head(start, tokenizer, tmp_path):
    stock = AutoModelForMaskedLM.from_pretrained(start).cls.predictions.transform.state_dict()
    for more in ({}, {"do_mlm": True}):
        model = AutoModelForCL.from_pretrained(start, denoising="transform", **OPTIONS, **more)
        layer = model.template_head.layer.state_dict()
        assert layer.keys() == stock.keys() and all(torch.equal(layer[name], stock[name]) for name in stock)
    AutoModel.from_pretrained(start).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="bare has no trained masked-LM head"):
        AutoModelForCL.from_pretrained(tmp_path / "bare", denoising="transform", **OPTIONS)


def test_a_saved_model_gives_the_denoised_embeddings_everywhere(start, tokenizer, tmp_path):
    trainer = trainer_of(start, tokenizer, tmp_path / "run")
    untrained = trainer.model.template_head.layer.dense.weight.detach().clone()
    trainer.train()
    evaluated = trainer.evaluate()["eval_stsb_spearman"]
    trainer.save_model()
    assert not torch.equal(untrained, trainer.model.template_head.layer.dense.weight)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["simcse"]["pooling"]["denoising"] == "transform"
    simcse = SimCSE(tmp_path / "run")
    embeddings = simcse.encode(TEXTS, normalize_embeddings=False)
    with torch.no_grad():
        trained = trainer.model.double().eval()
        expected = torch.stack([slow_embedding(trained, text) for text in TEXTS]).float()
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
    loaded = AutoModelForCL.from_pretrained(tmp_path / "run").eval()
    ids = tokenize_texts(tokenizer, TEXTS, 20, TEMPLATE)
    torch.testing.assert_close(encode_token_ids(loaded, ids, tokenizer.pad_token_id), embeddings, rtol=0, atol=1e-5)
    pairs = F.cosine_similarity(simcse.encode(TEXTS[:4]), simcse.encode(TEXTS[2:])).argsort().argsort()
    gold = torch.tensor(PAIRS.scores).argsort().argsort()
    assert 100 * torch.corrcoef(torch.stack([pairs, gold]).double())[0, 1].item() == pytest.approx(evaluated)
    simcse.save_pretrained(tmp_path / "copy")
    torch.testing.assert_close(
        SimCSE(tmp_path / "copy").encode(TEXTS, normalize_embeddings=False), embeddings, rtol=0, atol=0
    )


def test_stock_auto_model_loads_the_encoder_without_missing_or_unexpected_weights(start, tokenizer, tmp_path):
    trainer_of(start, tokenizer, tmp_path / "run").save_model()
    _, info = AutoModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert not (tmp_path / "run" / "modules.json").exists()
    plain = SimCSE(tmp_path / "run", pooler_type="avg")
    assert plain.model.template_head is None and plain.model.settings.denoising == "none"
    (tmp_path / "run" / "template_head" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks the weights of its pooler 'mask' \(template_head/model.safetensors"):
        SimCSE(tmp_path / "run")


def test_resuming_and_choosing_the_best_checkpoint_restore_the_layer(start, tokenizer, tmp_path):
    whole = trainer_of(start, tokenizer, tmp_path / "whole", learning_rate=1e-2)
    whole.train()
    first = trainer_of(start, tokenizer, tmp_path / "run", learning_rate=1e-2)
    first.args.save_strategy, first.args.save_steps = "steps", 1
    first.train()
    again = trainer_of(start, tokenizer, tmp_path / "run", learning_rate=1e-2)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    for name, weight in whole.model.template_head.state_dict().items():
        assert torch.equal(again.model.template_head.state_dict()[name], weight), name


@pytest.mark.parametrize("denoising", ["transform", "tanh"])
def test_the_model_card_shows_code_that_gives_the_denoised_embeddings(tokenizer, save_checkpoint, denoising):
    folder = save_checkpoint(model_of(tokenizer, denoising).float())
    card = write_card(folder, repo_id=str(folder)).read_text()
    assert "the embedding of the template without the text is subtracted" in card
    names = {}
    exec(card.split("With `transformers` alone:")[1].split("```python")[1].split("```")[0], names)
    ours = SimCSE(folder).encode(["A cat sits on the mat.", "A feline rests on a rug."])
    torch.testing.assert_close(names["embeddings"], ours, rtol=0, atol=1e-5)


def test_exports_that_cannot_hold_the_subtraction_are_refused(tokenizer, save_checkpoint, tmp_path):
    simcse = SimCSE(save_checkpoint(model_of(tokenizer).float()))
    with pytest.raises(ValueError, match="no pooling like 'mask'"):
        export_sentence_transformers(simcse, tmp_path / "out")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    with pytest.raises(ValueError, match="template"):
        export_onnx(simcse, tmp_path / "out")


# --- refusals ---


def test_denoising_needs_exactly_one_template():
    config = tiny_config()
    for templates in ([], ["the {text} [MASK]", "a {text} [MASK]"]):
        pooler = "mask" if templates else "avg"
        with pytest.raises(ValueError, match="exactly one template"):
            AutoModelForCL.from_config(config, pooler_type=pooler, templates=templates, denoising="tanh")
    with pytest.raises(ValueError, match="denoising must be one of none, transform, tanh"):
        AutoModelForCL.from_config(config, **OPTIONS, denoising="relu")
    with pytest.raises(ValueError, match="this encoder is 'roberta': use denoising 'tanh'"):
        AutoModelForCL.from_config(tiny_config("roberta"), **OPTIONS, denoising="transform")
