"""The identity of models and texts: equal for what gives the same embeddings, different after every change."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from conftest import read_json
from datasets import Dataset
from encoding_helpers import random_texts
from evaluation_helpers import write
from tokenizers.normalizers import NFD
from trainer_helpers import model_of, refuses

from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.encoding.saved import SavedModel
from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.runtime.errors import refuse_changes
from simcse_hf.runtime.identity import Identity, digest_rows, digest_texts, digest_weights, weights_state

# --- models ---


def saved_and_loaded(model, folder):
    model.save_pretrained(folder)
    return SimCSE(folder, device="cpu")


def test_encoding_does_not_change_the_identity(model):
    before = model.identity()
    model.encode(random_texts(5), max_length=8)
    assert model.identity() == before


def test_a_saved_model_has_the_same_identity_under_another_name(model, tmp_path):
    identity = model.identity()
    loaded = saved_and_loaded(model, tmp_path / "saved").identity()
    assert identity.changes(loaded) == [] and identity.name_or_path != loaded.name_or_path
    assert Identity.from_dict(json.loads(json.dumps(identity.to_dict()))) == identity


CHANGES = [
    ("other weights", lambda model: next(model.model.parameters()).data.mul_(2)),
    ("another tokenizer", lambda model: model.tokenizer.add_tokens(["zebra"])),
    ("another tokenizer", lambda model: setattr(model.tokenizer, "truncation_side", "left")),
    ("another tokenizer", lambda model: setattr(model.tokenizer.backend_tokenizer, "normalizer", NFD())),
    ("prompts", lambda model: model.prompts.update(document="a ")),
    ("default_prompt_name", lambda model: setattr(model, "default_prompt_name", "document")),
    ("max_length", lambda model: setattr(model, "max_length", 7)),
    ("long_texts", lambda model: setattr(model, "long_texts", "mean")),
]


@pytest.mark.parametrize("named, change", CHANGES)
def test_what_changes_embeddings_changes_the_identity(model, named, change):
    before = model.identity()
    change(model)
    assert named in "; ".join(before.changes(model.identity()))


def one_number(numbers):
    numbers[-1, 0] += 1e-3


def two_rows(numbers):
    numbers[[5, 9]] = numbers[[9, 5]]


@pytest.mark.parametrize("change", [one_number, two_rows])
def test_weights_that_change_behind_torch_are_others(model, change):
    before = model.identity()
    change(model.model.get_input_embeddings().weight.detach().numpy())
    assert before.changes(model.identity()) == ["other weights"]


#: A value of config.json or of a dense layer, and whether it changes embeddings.
SETTINGS = [
    ("num_attention_heads", 4, True),
    ("hidden_act", "relu", True),
    ("layer_norm_eps", 0.01, True),
    ("is_decoder", True, True),
    ("dense_layers", "torch.nn.Identity", True),
    ("normalize", True, True),
    ("hidden_dropout_prob", 0.3, False),
    ("initializer_range", 0.1, False),
    ("pad_token_id", 0, False),
    ("id2label", {"0": "good"}, False),
    ("note", "mine", False),
]


@pytest.mark.parametrize("name, value, counts", SETTINGS, ids=str)
def test_settings_of_layers_count_if_they_change_embeddings(name, value, counts, save_checkpoint):
    layer = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.Tanh"}
    model = model_of(pooler_type="avg", dense_layers=[layer], similarity_fn_name="dot")
    folder = save_checkpoint(model)
    before = SimCSE(folder, device="cpu")
    path = folder / "config.json"
    config = read_json(path)
    pooling = config["simcse"]["pooling"]
    if name == "dense_layers":
        pooling[name][0]["activation_function"] = value
    else:
        (pooling if name in pooling else config)[name] = value
    path.write_text(json.dumps(config))
    now = SimCSE(folder, device="cpu")
    texts = random_texts(5)
    moved = not torch.equal(before.encode(texts), now.encode(texts))
    found = [before.identity().changes(other.identity()) for other in (now, SavedModel(folder))]
    assert moved is counts and found == [["other settings of its layers (config.json)"] if counts else []] * 2


def test_the_config_is_not_compared_with_a_file_that_does_not_have_it(model):
    earlier = {name: value for name, value in model.identity().to_dict().items() if name != "config"}
    assert Identity.from_dict(earlier).changes(model.identity()) == []


def test_the_identity_of_a_whitened_model_with_prompts_is_kept_and_without_its_whitening_it_is_another(
    model, tmp_path
):
    fit_transform(model, "whitening", write(tmp_path / "texts.txt", random_texts(200)), dim=4)
    model.prompts["query"] = "the "
    model.default_prompt_name = "query"
    model.max_length = 12
    loaded = saved_and_loaded(model, tmp_path / "saved")
    assert model.identity().changes(loaded.identity()) == []
    plain = SimCSE(tmp_path / "saved", device="cpu", postprocess=False)
    assert model.identity().changes(plain.identity()) == [
        "other weights",
        "postprocessing 'whitening' there, None here",
    ]


def test_weights_of_another_type_have_no_common_digest(model, checkpoint):
    rounded = SimCSE(checkpoint, device="cpu", dtype=torch.bfloat16).identity()
    assert model.identity().changes(rounded) == ["dtype 'float32' there, 'bfloat16' here"]
    assert model.identity().changes(rounded, may_change=["dtype"]) == []


def test_weights_of_a_rounded_file_are_those_of_another_type_whatever_they_are_loaded_as(model, tmp_path):
    model.save_settings(tmp_path)
    model.model.half().save_pretrained(tmp_path)
    before, now = SimCSE(model.name_or_path, device="cpu").identity(), SimCSE(tmp_path, device="cpu").identity()
    assert before.changes(now) == ["other weights"] and before.changes(now, ["dtype"]) == []
    trained = replace(now, weights="another digest")
    assert now.changes(trained, ["dtype"]) == ["other weights"], "both are rounded"
    assert now == SavedModel(tmp_path).identity()


# --- digests of weights ---

WEIGHTS = {"large": torch.randn(300, 700), "small": torch.randn(3)}


def with_one_added(name, place):
    """The weights with one more in a place of a tensor."""
    changed = {key: tensor.clone() for key, tensor in WEIGHTS.items()}
    changed[name][place] += 1
    return changed


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_digest_sees_every_change_of_what_it_reads(reads_all):
    def digest(weights):
        return digest_weights(weights.items(), reads_all=reads_all)

    assert digest(with_one_added("small", 1)) != digest(WEIGHTS) == digest(WEIGHTS)
    # The second number of a large tensor, of which every third one is read.
    assert (digest(with_one_added("large", (0, 1))) != digest(WEIGHTS)) == reads_all


# --- digests of texts and rows ---


def list_of_pairs(values):
    return list(combinations(values, 2))


TEXTS = ["a cat", "", "é"]


@pytest.mark.parametrize(
    "one, other",
    list_of_pairs(
        [
            TEXTS,
            ["é", "", "a cat"],  # another order
            ["a cat", "", "é", ""],  # one more
            ["a ca", "t", "é"],  # another boundary
        ],
    ),
)
def test_other_texts_have_another_digest(one, other):
    number, digest = digest_texts(iter(one))
    assert (number, digest) == digest_texts(one) and number == len(one)
    assert digest != digest_texts(other)[1]


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
    assert digest_rows(rows_of(one[::-1]).select([1, 0])) == digest_rows(rows_of(one))


# --- settings ---

BEFORE = {"rate": 1, "seed": 2}
WHERE = "out: the seeds that it holds"


def test_a_setting_that_changed_or_is_missing_is_refused_with_both_values():
    refuse_changes(BEFORE, {"seed": 2, "rate": 1}, WHERE, "Start again.")
    with refuses(f"{WHERE} rate: 1 there, None here; seed: 2 there, 5 here Start again."):
        refuse_changes(BEFORE, {"seed": 5}, WHERE, "Start again.")


def test_a_change_of_weights_is_seen_without_a_version_and_tensors_without_numbers_are_passed_over():
    weights = torch.arange(12.0).reshape(3, 4)
    tensors = [weights, torch.empty(0), torch.empty(2, device="meta")]
    for reads_all, change in ((False, 2 * weights), (True, weights.flip(0)), (True, weights.flip(1))):
        before = weights_state(tensors, reads_all=reads_all)
        assert weights_state(tensors, reads_all=reads_all) == before
        weights.data.copy_(change)
        assert weights_state(tensors, reads_all=reads_all) != before
