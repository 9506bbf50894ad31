"""A folder of sentence-transformers is read whole, and what is saved here gives the same embeddings there."""

import inspect
import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from card_helpers import written
from conftest import random_batch, tiny_config, tiny_tokenizer
from encoding_helpers import perturb
from model_helpers import unused
from objective_helpers import assert_opens_in_transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling
from trainer_helpers import refuses
from transformers import AutoModel, AutoTokenizer

from simcse_hf import AutoModelForCL, BertForCL, SimCSE
from simcse_hf.models.sentence_transformers import KEYS, LIBRARY, TRANSFORMER, read_sentence_transformers_files

TANH = {
    "in_features": 32,
    "out_features": 16,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}
TEXTS = ["a cat sat on the mat .", "dog", "the old man sang", "a small bird slept in the big red tree"]
LONG = "the red house slept on in the old tree , " * 9


def module(name, path="", **others):
    return {"path": path, "type": f"sentence_transformers.models.{name}", **others}


MEAN = [module("Transformer"), module("Pooling", "1_Pooling")]
FILES = {
    "modules.json": [*MEAN, module("Dense", "2_Dense"), module("Normalize", "3_Normalize", idx=3, kwargs=[])],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "2_Dense/config.json": TANH | {"module_input_name": "sentence_embedding"},
    "3_Normalize/config.json": {},
    "sentence_bert_config.json": {"max_seq_length": 7, "do_lower_case": False, "unpad_inputs": True},
    LIBRARY: {"prompts": {"query": "query: ", "document": None}, "default_prompt_name": "query"},
}


def write(folder, changes=()):
    """Write `FILES` with changes."""
    for name, content in (FILES | dict(changes)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_every_key_of_the_library_is_read_or_refused_or_known_to_have_no_effect():
    known = {"self", "kwargs", "model_name_or_path", "backend", "init_weight", "init_bias"}
    for cls in (Pooling, Transformer, Dense, Normalize, Dropout):
        names = {*cls.config_keys, *inspect.signature(cls.__init__).parameters, *cls.config_key_renames}
        assert names - known <= KEYS[cls.__name__].keys(), cls


TRANSFORMER_FILE = TRANSFORMER[0]
REFUSED = [  # a file, what it holds, and the key or the module that is named
    ("modules.json", [*MEAN, module("LSTM", "2_LSTM")], "model of Transformer + Pooling + LSTM"),
    ("modules.json", [module("Transformer", "0_BERT"), MEAN[1]], "the folder 0_BERT"),
    ("modules.json", [MEAN[0], MEAN[1] | {"kwargs": ["task"]}], "kwargs = ['task'] in modules.json"),
    ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "pools by cls, mean"),
    ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt = False in config.json"),
    (LIBRARY, {"query_prefix": "[Q] "}, "query_prefix"),
    (TRANSFORMER_FILE, {"do_lower_case": True}, "do_lower_case with a tokenizer that keeps capitals"),
    (TRANSFORMER_FILE, {"model_args": {"torch_dtype": "float16"}}, "model_args.torch_dtype = 'float16'"),
]


@pytest.mark.parametrize("file, content, words", REFUSED)
def test_what_is_not_done_here_is_refused_by_its_name_unless_a_pooler_is_named(file, content, words, tmp_path):
    AutoModel.from_config(tiny_config()).save_pretrained(tmp_path)
    write(tmp_path, {"modules.json": [*MEAN, module("Normalize", "3_Normalize")], file: content})
    with refuses(f"{words} pass pooler_type"):
        AutoModelForCL.from_pretrained(tmp_path)


def test_of_two_modules_of_one_name_the_last_one_counts(save_library_model):
    folder = save_library_model("mean")
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    shutil.copytree(folder / "1_Pooling", folder / "max")
    config = {"embedding_dimension": 32, "pooling_mode": "max"}
    written(folder / "max/config.json", config)
    written(path, [*modules, modules[1] | {"path": "max"}])
    expected = there(folder).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(here(folder).encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(
    "file, content, words",
    [
        (LIBRARY, {"prompts": {"query": 1}}, "prompts"),
        ("modules.json", [{"type": "x.Transformer"}], "modules.json path"),
        ("modules.json", [module("Transformer", "../..")], "modules.json leaves"),
        (TRANSFORMER_FILE, {"max_seq_length": True}, "max_seq_length"),
        ("2_Dense/config.json", {"in_features": 4}, "2_Dense/config.json out_features"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_file_and_the_key(tmp_path, file, content, words):
    with refuses(words):
        read_sentence_transformers_files(write(tmp_path, {file: content}))


# --- the same embeddings as the library ---------------------------------------------------------------------------


def here(folder):
    return SimCSE(folder, device="cpu")


def there(folder):
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture
def save_library_model(tmp_path, tokenizer):
    """`save_library_model(pooling, layers)` saves a sentence-transformers model over a random stock encoder."""

    def save(pooling="mean", layers=(), family="bert", max_seq_length=20, **options):
        perturb(AutoModel.from_config(tiny_config(family))).save_pretrained(tmp_path / "encoder")
        tokenizer.save_pretrained(tmp_path / "encoder")
        transformer = Transformer(str(tmp_path / "encoder"), max_seq_length=max_seq_length)
        modules = [transformer, Pooling(32, pooling_mode=pooling), *layers]
        SentenceTransformer(modules=modules, device="cpu", **options).save(str(tmp_path / "library"))
        return tmp_path / "library"

    return save


def dense_modules(name):
    return {
        "none": [],
        "normalize": [Normalize()],
        "LaBSE": [Dense(32, 32), Dropout(0.5), Normalize()],
        "narrow": [Dense(32, 16, activation_function=torch.nn.Identity(), bias=False)],
        "two": [
            Dense(32, 48, activation_function=torch.nn.GELU()),
            Dense(48, 8, activation_function=torch.nn.ReLU()),
        ],
    }[name]


def assert_same_there(folder, texts=TEXTS):
    """`SimCSE` and the library give the same vectors of texts that differ."""
    model = here(folder)
    wanted = there(folder).encode(texts, convert_to_tensor=True)
    ours = model.encode(texts, normalize_embeddings=model.model.settings.normalize)
    torch.testing.assert_close(torch.as_tensor(ours), wanted, rtol=0, atol=1e-5)
    assert torch.cdist(wanted, wanted)[~torch.eye(len(texts), dtype=bool)].min() > 1e-3, "texts can be told apart"
    return model


def remove(folder, name):
    if name == "folders":
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    else:
        (folder / name).unlink()


@pytest.mark.parametrize(
    "lost, words",
    [
        ("folders", "lacks 1_Pooling/config.json, 2_Dense/config.json, which its modules.json names"),
        ("modules.json", "has config_sentence_transformers.json and no modules.json"),
    ],
)
def test_a_copy_without_what_its_modules_need_is_refused_unless_a_pooler_is_named(lost, words, save_library_model):
    folder = save_library_model("mean", dense_modules("narrow"))
    remove(folder, lost)
    with refuses(f"{folder} {words} pass pooler_type"):
        here(folder)
    assert SimCSE(folder, device="cpu", pooler_type="avg").encode("a cat").shape == (32,)


def test_a_model_of_ours_says_in_its_config_what_a_copy_without_folders_has_lost(save_checkpoint):
    folder = save_checkpoint(perturb(BertForCL(tiny_config())))
    expected = here(folder).encode(TEXTS)
    remove(folder, "folders")
    assert torch.equal(here(folder).encode(TEXTS), expected)


@pytest.mark.parametrize(
    "pooling, ours, layers",
    [
        ("cls", "cls_before_pooler", "none"),
        ("max", "max", "normalize"),
        ("cls", "cls_before_pooler", "LaBSE"),
        ("mean", "avg", "narrow"),
        ("mean", "avg", "two"),
    ],
)
def test_a_library_model_has_the_librarys_embeddings_here_and_when_saved_again(
    pooling, ours, layers, save_library_model, tmp_path
):
    directory = save_library_model(pooling, dense_modules(layers), "bert" if layers == "none" else "distilbert")
    model = assert_same_there(directory)
    assert model.pooler_type == ours and model.model.settings.normalize == (layers in ("normalize", "LaBSE"))
    perturb(model.model, 0.05)
    model.save_pretrained(tmp_path / "saved")
    assert_same_there(tmp_path / "saved")
    assert_opens_in_transformers(tmp_path / "saved")


def test_a_library_model_that_cuts_embeddings_does_so_here(save_library_model, tmp_path):
    folder = save_library_model(truncate_dim=5)
    expected = there(folder).encode(TEXTS, normalize_embeddings=True)
    model = here(folder)
    model.save_pretrained(tmp_path / "again")
    again = here(tmp_path / "again")
    for ours in (model.encode(TEXTS), again.encode(TEXTS), there(tmp_path / "again").encode(TEXTS)):
        np.testing.assert_allclose(F.normalize(torch.as_tensor(ours)), expected, atol=1e-5)
    assert model.dim == 5 and model.identity().changes(again.identity()) == []
    (folder / LIBRARY).write_text("{}")
    assert here(folder).identity().changes(model.identity()) != []


def test_prompts_similarity_and_length_of_a_library_model_are_kept(save_library_model, tmp_path):
    options = {"prompts": {"query": "the cat : ", "document": ""}, "default_prompt_name": "query"}
    options["similarity_fn_name"] = "euclidean"
    model = here(save_library_model(max_seq_length=7, **options))
    model.save_pretrained(tmp_path / "saved")
    again = there(tmp_path / "saved")
    assert model.max_length == again.max_seq_length == 7
    assert {name: getattr(again, name) for name in options} == options
    assert here(tmp_path / "saved").model.settings == model.model.settings


@pytest.mark.parametrize(
    "file, content, tokenizer_length, wanted",
    [
        (TRANSFORMER[0], {"max_seq_length": 12}, 8, 12),
        (TRANSFORMER[0], {"max_seq_length": None}, 8, 8),
        (TRANSFORMER[-1], {"max_seq_length": 12, "tokenizer_args": {"model_max_length": 6}}, 40, 6),
    ],
)
def test_the_length_of_a_folder_is_the_librarys(file, content, tokenizer_length, wanted, save_library_model):
    folder = save_library_model()
    (folder / TRANSFORMER[0]).unlink()
    written(folder / file, content)
    tiny_tokenizer(tokenizer_length).save_pretrained(folder)
    texts = [*TEXTS, LONG]
    assert assert_same_there(folder, texts).max_length == wanted
    assert there(folder).max_seq_length == wanted


def test_a_length_similarity_or_prompt_that_the_library_changed_in_our_folder_counts(save_checkpoint, tmp_path):
    options = {"prompts": {"query": "a "}, "default_prompt_name": "query", "max_length": 20}
    theirs = there(save_checkpoint(BertForCL(tiny_config(), pooler_type="avg", **options)))
    theirs.max_seq_length = 6
    theirs.similarity_fn_name = "dot"
    theirs.prompts["query"] = "the "
    theirs.default_prompt_name = None
    theirs.save(str(tmp_path / "changed"))
    model = assert_same_there(tmp_path / "changed", [*TEXTS, LONG])
    settings = model.model.settings
    assert model.max_length == 6 and settings.similarity_fn_name == "dot"
    assert settings.prompts["query"] == "the " and settings.default_prompt_name is None
    assert BertForCL.from_pretrained(tmp_path / "changed", prompts={}).settings.prompts == {}


def test_what_is_saved_is_read_by_programs_that_know_the_old_keys_and_need_numbers(tmp_path):
    AutoModel.from_config(tiny_config()).save_pretrained(tmp_path)
    tiny_tokenizer(12).save_pretrained(tmp_path)
    AutoModelForCL.from_pretrained(tmp_path, pooler_type="avg").save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/sentence_bert_config.json").read_text())["max_seq_length"] == 12
    pooling = json.loads((tmp_path / "saved/1_Pooling/config.json").read_text())
    assert [name for name, value in pooling.items() if value is True] == ["include_prompt", "pooling_mode_mean_tokens"]
    assert pooling["pooling_mode"] == "mean"


def test_dense_layers_are_trained_with_the_encoder(save_library_model):
    model = AutoModelForCL.from_pretrained(save_library_model("mean", dense_modules("two"))).train()
    model(**random_batch(4, 2)).loss.backward()
    assert not unused(model)
    assert model.objective.dim == model.embedding_dim == model.copy_encoder().embedding_dim == 8


def test_a_dense_layer_that_was_added_in_the_library_is_not_ignored(save_checkpoint, tmp_path):
    directory = save_checkpoint(BertForCL(tiny_config(), pooler_type="avg"))
    theirs = there(directory)
    theirs.append(dense_modules("narrow")[0])
    theirs.save(str(tmp_path / "changed"))
    with refuses("describes its pooling twice, and the two differ"):
        AutoModelForCL.from_pretrained(tmp_path / "changed")


def test_texts_may_be_lowered_by_a_tokenizer_that_does_so(save_library_model):
    folder = save_library_model()
    written(folder / TRANSFORMER[0], {"do_lower_case": True})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.normalizer.lowercase = True
    tokenizer.save_pretrained(folder)
    assert AutoModelForCL.from_pretrained(folder).settings.pooler_type == "avg"


# --- a head that is stored twice ----------------------------------------------------------------------------------


def test_of_two_heads_that_differ_one_must_be_chosen_unless_none_is_kept_or_used(save_checkpoint, tmp_path):
    """Further training in sentence-transformers changes `2_Dense` and not the pooler of our `cls` model."""
    saved, changed = save_checkpoint(BertForCL(tiny_config())), tmp_path / "changed"
    assert AutoModelForCL.from_pretrained(saved, dtype=torch.bfloat16).head_source == "kept", "equal in any dtype"
    theirs = there(saved)
    theirs[2].linear.weight.data.add_(0.1)
    theirs.save(str(changed))
    for head in ("auto", "keep"):
        with refuses("two different heads: 2_Dense differ by up to 0.1 head='dense'"):
            AutoModelForCL.from_pretrained(changed, head=head)
    with refuses("has no trained head"):
        SimCSE(changed, device="cpu", head="fresh")
    assert AutoModelForCL.from_pretrained(changed, head="fresh").head_source == "fresh"
    assert AutoModelForCL.from_pretrained(changed, pooler_type="avg").settings.pooler_type == "avg"

    newer, older = (SimCSE(changed, device="cpu", head=head) for head in ("dense", "pooler"))
    embeddings = newer.encode(TEXTS, normalize_embeddings=False)
    torch.testing.assert_close(embeddings, torch.as_tensor(theirs.encode(TEXTS)), rtol=0, atol=1e-6)
    newer.save_pretrained(tmp_path / "again")
    weights = [theirs[2].linear.weight, AutoModelForCL.from_pretrained(tmp_path / "again").bert.pooler.dense.weight]
    assert torch.equal(*weights)
    torch.testing.assert_close(weights[0] - older.model.bert.pooler.dense.weight, torch.full((32, 32), 0.1))
