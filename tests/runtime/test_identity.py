"""The identity of models and texts: equal for what gives the same embeddings, different after every change."""

import json
from itertools import combinations

import pytest
import torch
from datasets import Dataset
from encoding_helpers import random_texts

from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.runtime.errors import refuse_changes
from simcse_hf.runtime.identity import (
    Identity,
    digest_rows,
    digest_texts,
    digest_weights,
)

# --- models ---


def saved_and_loaded(model, folder, **options):
    model.save_pretrained(folder)
    return SimCSE(folder, device="cpu", **options)


def test_encoding_does_not_change_the_identity(model):
    before = model.identity()
    model.encode(random_texts(5), max_length=8)
    assert model.identity() == before


def test_a_saved_model_has_the_same_identity_under_another_name(model, tmp_path):
    loaded = saved_and_loaded(model, tmp_path / "saved").identity()
    assert model.identity().changes(loaded) == []
    assert model.identity().name_or_path != loaded.name_or_path


def test_an_identity_is_written_as_json_and_read_back(model):
    identity = model.identity()
    written = json.dumps(identity.to_dict())
    assert Identity.from_dict(json.loads(written)) == identity


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(random_texts(200)))
    return path


@pytest.fixture
def whitened(model, texts):
    """A model with a whitening, a default prompt and a maximum length of its own."""
    fit_transform(model, "whitening", texts, dim=4)
    model.prompts["query"] = "the "
    model.default_prompt_name = "query"
    model.max_length = 12
    return model


def test_the_identity_of_a_whitened_model_with_prompts_is_kept(whitened, tmp_path):
    loaded = saved_and_loaded(whitened, tmp_path / "saved")
    assert whitened.identity().changes(loaded.identity()) == []


def test_a_model_without_its_whitening_is_another(whitened, tmp_path):
    plain = saved_and_loaded(whitened, tmp_path / "saved", postprocess=False)
    assert whitened.identity().changes(plain.identity()) == [
        "other weights",
        "postprocessing 'whitening' there, None here",
    ]


def test_changed_weights_change_the_identity(model):
    before = model.identity()
    with torch.no_grad():
        next(model.model.parameters())[0, 0] += 1
    assert "other weights" in before.changes(model.identity())


def test_a_new_token_changes_the_identity(model):
    before = model.identity()
    model.tokenizer.add_tokens(["zebra"])
    assert "another tokenizer" in before.changes(model.identity())


def test_a_prompt_changes_the_identity(model):
    before = model.identity()
    model.prompts["document"] = "a "
    assert "prompts" in "; ".join(before.changes(model.identity()))


@pytest.mark.parametrize(
    "setting, value",
    [
        ("default_prompt_name", "document"),
        ("max_length", 7),
        ("long_texts", "mean"),
    ],
)
def test_a_setting_that_changes_embeddings_changes_the_identity(model, setting, value):
    before = model.identity()
    setattr(model, setting, value)
    assert setting in "; ".join(before.changes(model.identity()))


def test_a_whitening_changes_the_identity(model, texts):
    before = model.identity()
    fit_transform(model, "whitening", texts, dim=4)
    assert "postprocessing" in "; ".join(before.changes(model.identity()))


@pytest.fixture
def rounded(checkpoint):
    """The identity of the model with weights in half precision."""
    return SimCSE(checkpoint, device="cpu", dtype=torch.bfloat16).identity()


def test_weights_of_another_type_have_no_common_digest(model, rounded):
    assert model.identity().changes(rounded) == ["dtype 'float32' there, 'bfloat16' here"]


def test_the_type_of_the_weights_may_change_where_it_is_allowed(model, rounded):
    assert model.identity().changes(rounded, may_change=["dtype"]) == []


# --- digests of weights ---

WEIGHTS = {"large": torch.randn(300, 700), "small": torch.randn(3)}


def with_one_added(name, place):
    """The weights with one more in a place of a tensor."""
    changed = {key: tensor.clone() for key, tensor in WEIGHTS.items()}
    changed[name][place] += 1
    return changed


NOT_READ = (
    0,
    1,
)  # the second number of a large tensor, of which every third one is read


def digest(weights, reads_all=False):
    return digest_weights(weights.items(), reads_all=reads_all)


@pytest.mark.parametrize("reads_all", [False, True])
def test_the_same_weights_have_the_same_digest(reads_all):
    assert digest(WEIGHTS, reads_all) == digest(WEIGHTS, reads_all)


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_change_of_a_small_tensor_changes_the_digest(reads_all):
    assert digest(with_one_added("small", 1), reads_all) != digest(WEIGHTS, reads_all)


def test_a_digest_of_all_numbers_sees_every_change():
    assert digest(with_one_added("large", NOT_READ), reads_all=True) != digest(WEIGHTS, reads_all=True)


def test_a_digest_of_some_numbers_does_not_read_the_others():
    assert digest(with_one_added("large", NOT_READ)) == digest(WEIGHTS)


# --- digests of texts and rows ---


def list_of_pairs(values):
    return list(combinations(values, 2))


TEXTS = ["a cat", "", "é"]


def test_a_digest_of_texts_comes_with_their_number():
    number, _ = digest_texts(TEXTS)
    assert number == 3


def test_texts_of_a_generator_have_the_same_digest():
    assert digest_texts(iter(TEXTS)) == digest_texts(TEXTS)


@pytest.mark.parametrize(
    "one, other",
    list_of_pairs(
        [
            TEXTS,
            ["é", "", "a cat"],  # another order
            ["a cat", "", "é", ""],  # one more
            ["a", "cat", "", "é"],  # one in two
            ["a ca", "t", "é"],  # another boundary
        ],
    ),
)
def test_other_texts_have_another_digest(one, other):
    assert digest_texts(one)[1] != digest_texts(other)[1]


def rows_of(cells):
    return Dataset.from_dict({"x": cells})


@pytest.mark.parametrize(
    "one, other",
    list_of_pairs(
        [
            [[1, 2], [3]],
            [[1], [2, 3]],  # another boundary
            [[1, 2, 3], []],  # an empty row
            [[3], [1, 2]],  # another order
        ],
    ),
)
def test_other_rows_have_another_digest(one, other):
    assert digest_rows(rows_of(one)) != digest_rows(rows_of(other))


def test_selected_rows_have_the_digest_of_their_order():
    selected = rows_of([[1, 2], [3]]).select([1, 0])
    assert digest_rows(selected) == digest_rows(rows_of([[3], [1, 2]]))


# --- settings ---

BEFORE = {"rate": 1, "seed": 2}
WHERE = "out: the seeds that it holds"


def test_the_same_settings_in_another_order_are_taken():
    refuse_changes(BEFORE, {"seed": 2, "rate": 1}, WHERE, "Start again.")


def test_a_setting_that_changed_is_refused_with_both_values():
    message = rf"^{WHERE} was made with .*seed: 2 there, 5 here.* Start again"
    with pytest.raises(ValueError, match=message):
        refuse_changes(BEFORE, {"rate": 1, "seed": 5}, WHERE, "Start again.")


def test_a_setting_that_is_missing_is_refused():
    with pytest.raises(ValueError, match="rate: 1 there, None here"):
        refuse_changes(BEFORE, {"seed": 2}, WHERE, "Start again.")
