"""A user is promised that a sentence-transformers model keeps its pooling, dense layers, prompts and length here."""

import json

import pytest

from simcse_hf.models.sentence_transformers import (
    SentenceTransformersSettings,
    read_sentence_transformers_settings,
)

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
    assert read_sentence_transformers_settings(tmp_path) == SentenceTransformersSettings(
        pooler_type="avg",
        dense_layers=[TANH],
        dense_folders=["2_Dense"],
        normalize=True,
        max_seq_length=7,
        prompts=prompts,
        default_prompt_name="query",
    )


def test_a_model_without_these_files_has_the_defaults(tmp_path):
    assert read_sentence_transformers_settings(tmp_path) == SentenceTransformersSettings()


def test_reads_the_files_of_a_subfolder(tmp_path):
    write_files(tmp_path / "inner", ["Transformer", "Pooling"], pooling={"pooling_mode": "cls"})
    assert read_sentence_transformers_settings(tmp_path, subfolder="inner").pooler_type == "cls_before_pooler"
    assert read_sentence_transformers_settings(tmp_path).pooler_type is None


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (["Transformer", "Pooling", "LSTM"], {"pooling_mode": "mean"}, r"model of Transformer \+ Pooling \+ LSTM"),
        (["Transformer", "Dense"], None, r"model of Transformer \+ Dense"),
        (["WordEmbeddings", "Pooling"], {"pooling_mode": "mean"}, "model of WordEmbeddings"),
        (["Transformer", "Pooling"], {"pooling_mode": "lasttoken"}, "pools by lasttoken"),
        (["Transformer", "Pooling"], {"pooling_mode": ["cls", "mean"]}, "pools by cls, mean"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": False}, "pools by nothing"),
    ],
)
def test_says_why_modules_cannot_be_reproduced(modules, pooling, reason, tmp_path):
    settings = read_sentence_transformers_settings(write_files(tmp_path, modules, pooling, dense=TANH))
    assert settings.pooler_type is None
    with pytest.raises(ValueError, match=reason):
        raise ValueError(settings.unsupported)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ValueError, match=r"modules\.json is not valid JSON"):
        read_sentence_transformers_settings(tmp_path)
