"""The identity of models and texts: equal for what gives the same embeddings, different after every change."""

import json

import pytest
import torch
from datasets import Dataset
from inference_helpers import random_texts

from simcse_hf.inference.simcse import SimCSE
from simcse_hf.ops.errors import refuse_changes
from simcse_hf.ops.identity import Identity, digest_rows, digest_texts, digest_weights


def test_a_model_has_the_same_identity_after_it_is_saved_loaded_and_used(model, tmp_path):
    before = model.identity()
    model.encode(random_texts(5), max_length=8)
    model.save_pretrained(tmp_path / "saved")
    now = SimCSE(tmp_path / "saved", device="cpu").identity()
    assert model.identity() == before
    assert before.changes(now) == [] and before.name_or_path != now.name_or_path
    assert Identity.from_dict(json.loads(json.dumps(now.to_dict()))) == now


def test_the_identity_of_a_whitened_model_with_prompts_is_kept(model, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(random_texts(200)))
    model.fit_postprocessing("whitening", tmp_path / "texts.txt", dim=4)
    model.prompts["query"] = "the "
    model.default_prompt_name, model.max_length = "query", 12
    model.save_pretrained(tmp_path / "saved")
    loaded = SimCSE(tmp_path / "saved", device="cpu")
    assert model.identity().changes(loaded.identity()) == []
    plain = SimCSE(tmp_path / "saved", device="cpu", postprocess=False)
    assert loaded.identity().changes(plain.identity()) == [
        "other weights",
        "postprocessing 'whitening' there, None here",
    ]


def test_every_change_in_memory_changes_the_identity(model, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(random_texts(200)))

    def train():
        with torch.no_grad():
            next(model.model.parameters())[0, 0] += 1

    changes = {
        "other weights": train,
        "another tokenizer": lambda: model.tokenizer.add_tokens(["zebra"]),
        "prompts": lambda: model.prompts.update(document="a "),
        "default_prompt_name": lambda: setattr(model, "default_prompt_name", "document"),
        "max_length": lambda: setattr(model, "max_length", 7),
        "long_texts": lambda: setattr(model, "long_texts", "mean"),
        "postprocessing": lambda: model.fit_postprocessing("whitening", tmp_path / "texts.txt", dim=4),
    }
    for words, change in changes.items():
        before = model.identity()
        change()
        assert words in "; ".join(before.changes(model.identity()))


def test_weights_of_another_type_have_no_common_digest(model, checkpoint):
    rounded = SimCSE(checkpoint, device="cpu", dtype=torch.bfloat16).identity()
    assert model.identity().changes(rounded) == ["dtype 'float32' there, 'bfloat16' here"]
    assert model.identity().changes(rounded, may_change=["dtype"]) == []


def test_a_digest_of_some_numbers_and_one_of_all_know_their_weights():
    weights = {"large": torch.randn(300, 700), "small": torch.randn(3)}
    changed = {name: weight.clone() for name, weight in weights.items()}
    changed["large"][0, 1] += 1  # the second number, of which every third one is read
    changed_more = weights | {"small": weights["small"] + 1}
    for reads_all, others in ((False, [changed_more]), (True, [changed, changed_more])):
        digest = digest_weights(weights.items(), reads_all=reads_all)
        assert digest == digest_weights(weights.items(), reads_all=reads_all)
        assert digest not in [digest_weights(other.items(), reads_all=reads_all) for other in others]
    assert digest_weights(weights.items()) == digest_weights(changed.items())


def test_texts_and_rows_are_known_by_content_and_order():
    texts = ["a cat", "", "é"]
    assert digest_texts(texts) == (3, digest_texts(iter(texts))[1])
    others = [texts[::-1], [*texts, ""], ["a", "cat", *texts[1:]], ["a ca", "t", *texts[2:]]]
    assert len({digest_texts(each)[1] for each in [texts, *others]}) == 5
    rows = [Dataset.from_dict({"x": x}) for x in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3], []], [[3], [1, 2]])]
    assert len({digest_rows(each) for each in rows}) == 4
    assert digest_rows(rows[0].select([1, 0])) == digest_rows(rows[3])


def test_settings_that_changed_are_refused_with_both_values():
    before = {"rate": 1, "seed": 2}
    where = "out: the seeds that it holds"
    refuse_changes(before, {"seed": 2, "rate": 1}, where, "Start again.")
    with pytest.raises(ValueError, match=rf"^{where} was made with .*seed: 2 there, 5 here.* Start again"):
        refuse_changes(before, {"rate": 1, "seed": 5}, where, "Start again.")
    with pytest.raises(ValueError, match="rate: 1 there, None here"):
        refuse_changes(before, {"seed": 2}, where, "Start again.")
