"""A sentence-transformers model keeps its pooling, dense layers, prompts and maximum length."""

import json

import pytest
import torch
from conftest import flat, random_batch, tiny_config
from transformers import AutoModel

from simcse_hf import AutoModelForCL, BertForCL, SimCSE
from simcse_hf.models.sentence_transformers import SentenceTransformersFiles, read_sentence_transformers_files

TANH = {"in_features": 32, "out_features": 16, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


def write_files(directory, modules, pooling=None, dense=None, library=None, **transformer):
    """Write the files of sentence-transformers, with modules named like `Dense` in folders named like `2_Dense`."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"path": "" if i == 0 else f"{i}_{name}", "type": f"some.{name}"} for i, name in enumerate(modules)]
    (directory / "modules.json").write_text(json.dumps(rows))
    (directory / "sentence_bert_config.json").write_text(json.dumps(transformer))
    if library is not None:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(library))
    for row in rows[1:]:
        config = {"Pooling": pooling, "Dense": dense}.get(row["type"].removeprefix("some."))
        if config is not None:
            (directory / row["path"]).mkdir()
            (directory / row["path"] / "config.json").write_text(json.dumps(config))
    return directory


def test_reads_pooling_dense_layers_length_and_prompts(tmp_path):
    prompts = {"query": "query: ", "document": "passage: "}
    write_files(
        tmp_path,
        ["Transformer", "Pooling", "Dense", "Normalize"],
        pooling={"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
        dense=TANH | {"module_input_name": "sentence_embedding"},
        library={"prompts": prompts, "default_prompt_name": "query"},
        max_seq_length=7,
    )
    assert read_sentence_transformers_files(tmp_path) == SentenceTransformersFiles(
        {
            "pooler_type": "avg",
            "dense_layers": [TANH],
            "normalize": True,
            "max_length": 7,
            "prompts": prompts,
            "default_prompt_name": "query",
        },
        ["2_Dense"],
    )


def test_a_model_without_these_files_has_the_defaults(tmp_path):
    assert read_sentence_transformers_files(tmp_path) == SentenceTransformersFiles()


def test_reads_the_files_of_a_subfolder(tmp_path):
    write_files(tmp_path / "inner", ["Transformer", "Pooling"], pooling={"pooling_mode": "cls"})
    assert read_sentence_transformers_files(tmp_path, subfolder="inner").pooling["pooler_type"] == "cls_before_pooler"
    assert read_sentence_transformers_files(tmp_path).pooling == {}


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (["Transformer", "Pooling", "LSTM"], {"pooling_mode": "mean"}, r"model of Transformer \+ Pooling \+ LSTM"),
        (["Transformer", "Dense"], None, r"model of Transformer \+ Dense"),
        (["WordEmbeddings", "Pooling"], {"pooling_mode": "mean"}, "model of WordEmbeddings"),
        (["Transformer", "Pooling"], {"pooling_mode": "weightedmean"}, "pools by weightedmean"),
        (["Transformer", "Pooling"], {"pooling_mode": ["cls", "mean"]}, "pools by cls, mean"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": False}, "pools by nothing"),
    ],
)
def test_says_why_modules_cannot_be_reproduced(modules, pooling, reason, tmp_path):
    settings = read_sentence_transformers_files(write_files(tmp_path, modules, pooling, dense=TANH))
    assert "pooler_type" not in settings.pooling
    with pytest.raises(ValueError, match=reason):
        raise ValueError(settings.unsupported)


# --- the same embeddings as the library ---------------------------------------------------------------------------

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang", "a small bird slept in the big red tree"]
LONG = "the old man sang . " * 20


@pytest.fixture
def library():
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers: extra `test`")


@pytest.fixture
def save_library_model(library, tmp_path, tokenizer):
    """`save_library_model(pooling, layers)` saves a sentence-transformers model over a random stock encoder."""

    def save(pooling, layers=(), family="bert", prompts=None, default_prompt_name=None, max_seq_length=20):
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        encoder = AutoModel.from_config(tiny_config(family))
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        encoder.save_pretrained(tmp_path / "encoder")
        tokenizer.save_pretrained(tmp_path / "encoder")
        transformer = Transformer(str(tmp_path / "encoder"), max_seq_length=max_seq_length)
        model = library.SentenceTransformer(
            modules=[transformer, Pooling(32, pooling_mode=pooling), *layers],
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            device="cpu",
        )
        model.save(str(tmp_path / "library"))
        return tmp_path / "library"

    return save


def embeddings_here(directory, texts=TEXTS):
    model = AutoModelForCL.from_pretrained(directory).eval()
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(directory)(
        texts, padding=True, truncation=True, max_length=model.settings.max_length or 40, return_tensors="pt"
    )
    with torch.no_grad():
        return model(tokens["input_ids"], tokens["attention_mask"]).sentence_embeddings


def dense_modules(name):
    from sentence_transformers.base.modules import Dense, Normalize

    return {
        "none": [],
        "normalize": [Normalize()],
        "LaBSE": [Dense(32, 32), Normalize()],
        "narrow": [Dense(32, 16, activation_function=torch.nn.Identity(), bias=False)],
        "two": [Dense(32, 48, activation_function=torch.nn.GELU()), Dense(48, 8, activation_function=torch.nn.ReLU())],
    }[name]


@pytest.mark.parametrize("layers", ["none", "normalize", "LaBSE", "narrow", "two"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_library_model_gives_the_librarys_embeddings(pooling, layers, library, save_library_model):
    directory = save_library_model(pooling, dense_modules(layers))
    wanted = library.SentenceTransformer(str(directory), device="cpu").encode(TEXTS, convert_to_tensor=True)
    model = AutoModelForCL.from_pretrained(directory)
    assert model.settings.pooler_type == {"cls": "cls_before_pooler", "mean": "avg", "max": "max"}[pooling]
    assert model.embedding_dim == wanted.shape[1] and model.settings.normalize == (layers in ("normalize", "LaBSE"))
    ours = embeddings_here(directory)
    ours = torch.nn.functional.normalize(ours) if model.settings.normalize else ours
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)
    assert torch.cdist(wanted, wanted)[~torch.eye(len(TEXTS), dtype=bool)].min() > 1e-3, "texts can be told apart"


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_what_is_saved_here_gives_the_same_embeddings_there(
    pooling, family, library, save_library_model, save_checkpoint
):
    directory = save_library_model(pooling, dense_modules("LaBSE"), family)
    model = AutoModelForCL.from_pretrained(directory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    saved = save_checkpoint(model, "saved")
    wanted = torch.nn.functional.normalize(embeddings_here(saved))
    theirs = library.SentenceTransformer(str(saved), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(theirs, wanted, rtol=0, atol=1e-5)
    stock, info = AutoModel.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_prompts_and_length_of_a_library_model_are_kept(library, save_library_model, save_checkpoint):
    prompts = {"query": "the cat : ", "document": ""}
    directory = save_library_model("mean", prompts=prompts, default_prompt_name="query", max_seq_length=7)
    config = directory / "sentence_bert_config.json"  # before version 6, the length stood here
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_seq_length": 7}))
    model = AutoModelForCL.from_pretrained(directory)
    assert (model.settings.prompts, model.settings.default_prompt_name) == (prompts, "query")
    assert model.settings.max_length == 7 and model.settings.max_seq_length == 32
    saved = save_checkpoint(model, "saved")
    again = library.SentenceTransformer(str(saved), device="cpu")
    assert (again.prompts, again.default_prompt_name, again.max_seq_length) == (prompts, "query", 7)
    assert AutoModelForCL.from_pretrained(saved).settings == model.settings


def test_prompts_that_were_edited_in_the_librarys_file_are_used(save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config(), prompts={"query": "a "}, default_prompt_name="query"))
    path = directory / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "the "}, "default_prompt_name": None}))
    settings = BertForCL.from_pretrained(directory).settings
    assert settings.prompts == {"query": "the "} and settings.default_prompt_name is None
    assert BertForCL.from_pretrained(directory, prompts={}).settings.prompts == {}


def test_a_pooling_that_cannot_be_reproduced_is_refused_unless_a_pooler_is_named(save_checkpoint, caplog):
    directory = save_checkpoint(AutoModel.from_config(tiny_config()))
    write_files(directory, ["Transformer", "Pooling"], pooling={"pooling_mode": "weightedmean"})
    with pytest.raises(ValueError, match="pools by weightedmean.*pass pooler_type"):
        AutoModelForCL.from_pretrained(directory)
    with caplog.at_level("WARNING", logger="simcse_hf"):
        assert AutoModelForCL.from_pretrained(directory, pooler_type="avg").settings.pooler_type == "avg"
    assert "pooler_type 'avg' replaces the pooling of modules.json" in caplog.text


def test_another_pooler_replaces_the_pooling_with_its_dense_layers(save_library_model, caplog):
    directory = save_library_model("mean", dense_modules("narrow"))
    assert AutoModelForCL.from_pretrained(directory, pooler_type="avg").embedding_dim == 16
    assert "replaces" not in caplog.text
    with caplog.at_level("WARNING", logger="simcse_hf"):
        assert AutoModelForCL.from_pretrained(directory, pooler_type="cls_before_pooler").embedding_dim == 32
    assert r"'cls_before_pooler' replaces the pooling of modules.json (avg + dense)" in caplog.text


def test_dense_layers_are_trained_with_the_encoder(save_library_model):
    model = AutoModelForCL.from_pretrained(save_library_model("mean", dense_modules("two"))).train()
    model(**random_batch(4, 2)).loss.backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert model.objective.dim == model.embedding_dim == 8
    twin = model.copy_encoder().eval()
    batch = flat(random_batch(2, 2))
    assert torch.equal(twin(**batch).sentence_embeddings, model.eval()(**batch).sentence_embeddings)


def test_a_dense_layer_that_was_added_in_the_library_is_not_ignored(library, save_checkpoint, tmp_path):
    directory = save_checkpoint(BertForCL(tiny_config(), pooler_type="avg"))
    theirs = library.SentenceTransformer(str(directory), device="cpu")
    theirs.append(dense_modules("narrow")[0])
    theirs.save(str(tmp_path / "changed"))
    with pytest.raises(ValueError, match="describes its pooling twice, and the two differ"):
        AutoModelForCL.from_pretrained(tmp_path / "changed")


# --- a head that is stored twice ----------------------------------------------------------------------------------


@pytest.fixture
def trained_on_in_the_library(library, save_checkpoint, tmp_path):
    """Our `cls` model after further training in sentence-transformers, which changes `2_Dense` but not the pooler."""
    theirs = library.SentenceTransformer(str(save_checkpoint(BertForCL(tiny_config()))), device="cpu")
    with torch.no_grad():
        theirs[2].linear.weight.add_(0.1)
    theirs.save(str(tmp_path / "trained_on"))
    return tmp_path / "trained_on", theirs


def test_two_heads_that_differ_are_refused(trained_on_in_the_library):
    directory, _ = trained_on_in_the_library
    for head in ("auto", "keep"):
        with pytest.raises(ValueError, match="two different heads: .*2_Dense.* differ by up to 0.1.*head='dense'"):
            AutoModelForCL.from_pretrained(directory, head=head)


def test_the_newer_head_can_be_chosen(trained_on_in_the_library, save_checkpoint):
    directory, theirs = trained_on_in_the_library
    model = AutoModelForCL.from_pretrained(directory, head="dense")
    assert model.head_source == "kept" and torch.equal(model.bert.pooler.dense.weight, theirs[2].linear.weight)
    again = AutoModelForCL.from_pretrained(save_checkpoint(model, "again"))
    assert torch.equal(again.bert.pooler.dense.weight, theirs[2].linear.weight)
    older = AutoModelForCL.from_pretrained(directory, head="pooler")
    difference = theirs[2].linear.weight - older.bert.pooler.dense.weight
    torch.testing.assert_close(difference, torch.full_like(difference, 0.1))


def test_the_newer_head_can_be_chosen_for_inference(trained_on_in_the_library):
    directory, theirs = trained_on_in_the_library
    with pytest.raises(ValueError, match="two different heads: .*Pass head='dense'"):
        SimCSE(directory, device="cpu")
    texts = ["a cat sat .", "the dog"]
    newer, older = (SimCSE(directory, device="cpu", head=head) for head in ("dense", "pooler"))
    embeddings = newer.encode(texts, normalize_embeddings=False)
    torch.testing.assert_close(embeddings, torch.as_tensor(theirs.encode(texts)), rtol=0, atol=1e-6)
    difference = newer.model.bert.pooler.dense.weight - older.model.bert.pooler.dense.weight
    torch.testing.assert_close(difference, torch.full_like(difference, 0.1))
    with pytest.raises(ValueError, match="has no trained head"):
        SimCSE(directory, device="cpu", head="fresh")


def test_differing_heads_are_accepted_if_none_is_kept_or_used(trained_on_in_the_library):
    directory, _ = trained_on_in_the_library
    assert AutoModelForCL.from_pretrained(directory, head="fresh").head_source == "fresh"
    assert AutoModelForCL.from_pretrained(directory, pooler_type="avg").settings.pooler_type == "avg"


def test_equal_heads_load_in_any_dtype(save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config()))
    for head in ("auto", "dense", "pooler"):
        model = AutoModelForCL.from_pretrained(directory, head=head, dtype=torch.bfloat16)
        assert model.head_source == "kept" and model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name, content",
    [
        ("config_sentence_transformers.json", []),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ("modules.json", {"a": 1}),
        ("modules.json", "["),
        ("modules.json", [{"type": "x.Transformer"}]),
        ("modules.json", [{"path": "../..", "type": "x.Transformer"}]),
        ("sentence_bert_config.json", {"max_seq_length": "128"}),
        ("sentence_bert_config.json", {"max_seq_length": True}),
        ("1_Pooling/config.json", {"pooling_mode": [["cls"]]}),
        ("2_Dense/config.json", {"in_features": 4}),
        ("2_Dense/config.json", {"in_features": 4, "out_features": -1}),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_file(tmp_path, name, content):
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    files = {
        "modules.json": [*modules, {"path": "2_Dense", "type": "x.Dense"}],
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "2_Dense/config.json": {"in_features": 4, "out_features": 4},
    }
    for path, value in (files | {name: content}).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(ValueError, match=name):
        read_sentence_transformers_files(tmp_path)
