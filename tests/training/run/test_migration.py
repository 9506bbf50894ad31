"""What docs/migration.md promises: the losses of sentence-transformers are those of the objectives beside them."""

import pytest
from conftest import save_encoder, tiny_config
from datasets import Dataset
from trainer_helpers import arguments, logged, sentences
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSETrainer

st = pytest.importorskip("sentence_transformers")
losses = st.sentence_transformer.losses

_ANCHORS, _POSITIVES, _NEGATIVES = (sentences(12, seed) for seed in range(3))
_PAIRS = {"anchor": _ANCHORS, "positive": _POSITIVES}
_TRIPLETS = _PAIRS | {"negative": _NEGATIVES}
_SCORED = {"sentence1": _ANCHORS, "sentence2": _POSITIVES, "score": [i / 12 for i in range(12)]}
_STEPS = {"max_steps": 3, "per_device_train_batch_size": 12, "logging_steps": 1, "learning_rate": 1e-3}


def matryoshka(model):
    return losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), matryoshka_dims=[32, 16, 8])


def gist(model):
    model.save_pretrained("guide")
    guide = st.SentenceTransformer("guide", device="cpu")
    own = {"temperature": 0.05, "contrast_anchors": False, "contrast_positives": False}
    return losses.GISTEmbedLoss(model, guide, **own)


#: The loss there, the rows, and the settings of the model and of the run here.
_LOSSES = {
    "pairs": (lambda m: losses.MultipleNegativesRankingLoss(m, scale=10), _PAIRS, {"temperature": 0.1}, {}),
    "triplets": (losses.MultipleNegativesRankingLoss, _TRIPLETS, {}, {}),
    "dot": (lambda m: losses.MultipleNegativesRankingLoss(m, 1, st.util.dot_score), _PAIRS, {"similarity": "dot"}, {}),
    "cached": (losses.CachedMultipleNegativesRankingLoss, _TRIPLETS, {}, {"gradcache_chunk_size": 4}),
    "symmetric": (
        losses.MultipleNegativesSymmetricRankingLoss,
        _TRIPLETS,
        {"objective_options": {"bidirectional": True}},
        {},
    ),
    "cosent": (losses.CoSENTLoss, _SCORED, {"objective": "cosent"}, {}),
    "matryoshka": (matryoshka, _PAIRS, {"objective_options": {"matryoshka_dims": [16, 8]}}, {}),
    "guide": (gist, _PAIRS, {}, {"guide": ["guide"]}),
}


def losses_of(trainer):
    trainer.train()
    return logged(trainer, "loss")


@pytest.mark.parametrize("name", _LOSSES)
def test_the_losses_of_three_steps_without_dropout_are_those_of_sentence_transformers(name, tmp_path, monkeypatch):
    loss, rows, settings, run = _LOSSES[name]
    monkeypatch.chdir(tmp_path)
    save_encoder("encoder", BertModel, tiny_config(initializer_range=0.2, dropout=0.0))

    model = st.SentenceTransformer("encoder", device="cpu")
    theirs = st.SentenceTransformerTrainer(
        model,
        st.SentenceTransformerTrainingArguments("theirs", use_cpu=True, disable_tqdm=True, **_STEPS),
        train_dataset=Dataset.from_dict(rows),
        loss=loss(model),
    )
    ours = SimCSETrainer(
        AutoModelForCL.from_pretrained("encoder", pooler_type="avg", **settings),
        arguments(tmp_path, **_STEPS, **run),
        train_dataset=Dataset.from_dict(rows),
    )

    assert losses_of(ours) == pytest.approx(losses_of(theirs), rel=1e-4, abs=1e-5)
