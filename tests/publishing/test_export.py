"""sentence-transformers and ONNX Runtime give the same embeddings as this package."""

import copy
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from cli_helpers import export_main
from conftest import FAMILIES, fast_first, tiny_config
from encoding_helpers import perturb
from publishing_fixtures import save_random
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.apps.export import export_sentence_transformers
from simcse_hf.encoding.graphs import GRAPHS, export_graph
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "",
    "the old man sang . " * 20,
    "a small bird slept in the big red tree",
]
IN_SENTENCE_TRANSFORMERS = [pooler for pooler in POOLER_TYPES if POOLERS[pooler].mode]
LACKING = [pooler for pooler in POOLER_TYPES if not POOLERS[pooler].mode]


@pytest.fixture
def onnx():
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="session")
def published(tmp_path_factory, tokenizer):
    """A directory in the layout of the published SimCSE models: a stock encoder with its pooler and nothing else."""
    directory = tmp_path_factory.mktemp("published")
    torch.manual_seed(2)
    perturb(BertModel(tiny_config(num_hidden_layers=3))).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def sentence_transformer_vectors(directory):
    library = pytest.importorskip("sentence_transformers", reason="sentence_transformers is not installed")
    return library.SentenceTransformer(str(directory), device="cpu").encode(TEXTS, convert_to_tensor=True)


def assert_same_embeddings(found, expected):
    """That embeddings are equal, and that those of different texts can be told apart."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    distances = torch.cdist(expected, expected)
    of_others = ~torch.eye(len(expected), dtype=bool)
    assert distances[of_others].min() > 1e-3


def embeddings_of(simcse):
    return simcse.encode(TEXTS, normalize_embeddings=False)


# --- the same vectors everywhere ---


@pytest.mark.parametrize("pooler", IN_SENTENCE_TRANSFORMERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_encoder_family_gives_equal_embeddings_in_sentence_transformers(family, pooler, saved):
    folder = saved(family, pooler_type=pooler)
    theirs = sentence_transformer_vectors(folder)
    assert_same_embeddings(theirs, embeddings_of(SimCSE(folder)))


@pytest.fixture
def with_head_for_training(saved):
    """A model whose head is for training only."""
    return SimCSE(saved(pooler_type="cls", mlp_only_train=True))


def test_a_head_for_training_only_is_not_used(with_head_for_training):
    assert with_head_for_training.pooler_type == "cls_before_pooler"


def test_a_head_for_training_only_is_not_used_in_sentence_transformers(
    with_head_for_training,
):
    theirs = sentence_transformer_vectors(with_head_for_training.name_or_path)
    assert_same_embeddings(theirs, embeddings_of(with_head_for_training))


@pytest.fixture(scope="module")
def of_published(pooler, published):
    """The embeddings of the published model with a pooler."""
    return embeddings_of(SimCSE(published, pooler_type=pooler))


@pytest.fixture(scope="module")
def exported(pooler, published, tmp_path_factory):
    """The folder of its export."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    return export_sentence_transformers(SimCSE(published, pooler_type=pooler), folder)


EVERY_POOLER = pytest.mark.parametrize("pooler", IN_SENTENCE_TRANSFORMERS, scope="module")


@EVERY_POOLER
def test_a_published_model_gives_equal_embeddings_in_sentence_transformers(exported, of_published):
    assert_same_embeddings(sentence_transformer_vectors(exported), of_published)


@EVERY_POOLER
def test_an_export_has_the_pooler_with_which_it_was_made(exported, pooler):
    assert SimCSE(exported).pooler_type == pooler


@EVERY_POOLER
def test_an_export_gives_the_same_embeddings(exported, of_published):
    assert torch.equal(embeddings_of(SimCSE(exported)), of_published)


@pytest.fixture(scope="module")
def in_onnx(name, tokenizer, tmp_path_factory):
    """A model with a pooler, and the folder of its graph."""
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("onnx")
    simcse = SimCSE(save_random(folder, tokenizer, pooler_type=name))
    export_graph(simcse, folder / "out", "onnx")
    return simcse, folder / "out"


CLS_FIRST = fast_first("cls", *(name for name in POOLER_TYPES if name != "cls"))
EVERY_POOLER_IN_ONNX = pytest.mark.parametrize("name", CLS_FIRST, scope="module")


@EVERY_POOLER_IN_ONNX
def test_a_saved_model_gives_equal_embeddings_in_onnx_runtime(in_onnx):
    simcse, folder = in_onnx
    found = embeddings_of(SimCSE(folder, backend="onnx"))
    assert_same_embeddings(found, embeddings_of(simcse))


@EVERY_POOLER_IN_ONNX
def test_a_graph_has_the_modules_of_a_pooler_that_sentence_transformers_has_alone(in_onnx, name):
    _, folder = in_onnx
    pooler = POOLERS[name]
    has_modules = pooler.mode is not None and pooler.second_layer is None
    assert (folder / "modules.json").exists() is has_modules


# --- the files of every save ---


@pytest.fixture(scope="module")
def unsupported(pooler, tokenizer, tmp_path_factory):
    """The folder of a model that is saved with a pooler that sentence-transformers lacks; before, it had another."""
    folder = tmp_path_factory.mktemp("unsupported") / "model"
    for each in ("avg", pooler):
        model = AutoModelForCL.from_config(tiny_config(), pooler_type=each)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


LACKING_POOLERS = pytest.mark.parametrize("pooler", LACKING, scope="module")


@LACKING_POOLERS
def test_a_pooler_that_sentence_transformers_lacks_is_saved_with_a_warning(pooler, tmp_path, caplog):
    model = AutoModelForCL.from_config(tiny_config(), pooler_type=pooler)
    model.save_pretrained(tmp_path)
    assert f"no pooling like '{pooler}'" in caplog.text


@LACKING_POOLERS
def test_a_pooler_that_sentence_transformers_lacks_leaves_no_pooling_of_before(
    unsupported,
):
    assert not (unsupported / "1_Pooling").exists()


@LACKING_POOLERS
def test_a_pooler_that_sentence_transformers_lacks_is_named_in_its_modules(unsupported, pooler):
    """SentenceTransformer refuses the name."""
    assert pooler in (unsupported / "modules.json").read_text()


@LACKING_POOLERS
def test_a_pooler_that_sentence_transformers_lacks_is_not_exported(unsupported, pooler, tmp_path):
    words = f"no pooling like '{pooler}'.*Choose another pooler"
    with pytest.raises(ValueError, match=words):
        export_sentence_transformers(SimCSE(unsupported), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing is written"


@pytest.mark.parametrize(
    ("family", "limit"),
    [("bert", 40), ("roberta", 40), ("bert", 12), ("mpnet", 1 << 40)],
)
def test_texts_are_truncated_to_the_same_length_everywhere(family, limit, tmp_path, tokenizer):
    """The limit is the tokenizer's or the encoder's, whichever is smaller. RoBERTa's 40 positions serve 38 tokens."""
    model = AutoModelForCL.from_config(tiny_config(family), pooler_type="avg")
    perturb(model).save_pretrained(tmp_path)
    limited = copy.deepcopy(tokenizer)
    limited.model_max_length = limit
    limited.save_pretrained(tmp_path)
    simcse = SimCSE(tmp_path)
    assert simcse.max_length == min(limit, 40 if family == "bert" else 38)
    theirs = sentence_transformer_vectors(tmp_path)
    assert_same_embeddings(theirs, embeddings_of(simcse))


# --- the command ---


@pytest.fixture(scope="module")
def by_command(published, tmp_path_factory):
    """The folder that the command wrote, what it printed, and the source before."""
    folder = tmp_path_factory.mktemp("command") / "x"
    before = contents(published)
    words = f"{published} --to sentence-transformers --output {folder} --pooler avg"
    with redirect_stdout(StringIO()) as printed:
        assert export_main(words.split()) == 0
    return SimpleNamespace(folder=folder, printed=printed.getvalue(), before=before)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_export_command_names_the_pooler(by_command):
    assert "'avg'" in by_command.printed


def test_the_export_command_writes_the_pooler(by_command):
    assert SimCSE(by_command.folder).pooler_type == "avg"


def test_the_export_command_does_not_change_the_source(by_command, published):
    assert contents(published) == by_command.before


@pytest.mark.slow
def test_a_graph_with_wrong_embeddings_is_deleted(onnx, published, tmp_path, monkeypatch):
    monkeypatch.setattr("simcse_hf.encoding.graphs.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="differ from torch's"):
        export_graph(SimCSE(published, pooler_type="avg"), tmp_path / "x", "onnx")
    assert not (tmp_path / "x" / GRAPHS["onnx"].file).exists()
