"""What a card says about training: exactly the objective, rows, views and additions that were used."""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

import pytest
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from huggingface_hub import ModelCard

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.objectives import (
    OBJECTIVES,
    Objective,
    described_objective,
    part_weights,
    register,
)
from simcse_hf.publishing.card import write_card
from simcse_hf.publishing.card_text import PAPERS

WORDS = VOCABULARY[5:25]
TEMPLATES = ["the {text} [MASK] .", "a {text} [MASK] ."]
TEXTS = ["the cat sat", "a dog ran", "the bird sang", "an old house", "the man slept"]
DROPOUT = "two dropout views of each sentence"
PAIRS = {"sent0": TEXTS, "sent1": TEXTS[::-1]}
TRIPLETS = PAIRS | {"sent2": TEXTS[1:] + TEXTS[:1]}
NLI = {
    "texts": [[text, *TEXTS[:2]] for text in TEXTS],
    "relations": [[0, 2]] * len(TEXTS),
}


def rows_for(objective, tokenizer):
    """Rows of the kind that an objective reads."""
    kind = described_objective(objective).rows
    if kind == "spans":
        return SpanDataset([[" ".join(WORDS)] * 4 for _ in range(8)], tokenizer, 12)
    if kind == "scored_pairs":
        return Dataset.from_dict(PAIRS | {"score": [0.0, 1.0, 2.0, 3.0, 4.0]})
    return Dataset.from_dict(NLI if kind == "nli" else {"sent0": TEXTS})


@dataclass
class WrittenCard:
    """A card, and the record of the run that it describes."""

    text: str
    run: dict = field(default_factory=dict)

    @cached_property
    def tags(self):
        return ModelCard(self.text).data.tags

    @cached_property
    def hyperparameters(self):
        """The table of hyperparameters."""
        return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", self.text, re.M))

    @cached_property
    def papers(self):
        """The papers that are cited."""
        keys = {paper.key: name for name, paper in PAPERS.items()}
        cited = re.findall(r"^@\w+\{([\w-]+),$", self.text, re.M)
        return {keys[key] for key in cited}


def write_card_of_run(folder, tokenizer, settings=None, rows=None, start=None, **arguments):
    """Write the card of a run to come."""
    settings = settings or {}
    if start is None:
        model = AutoModelForCL.from_config(tiny_config(), **settings)
    else:
        model = AutoModelForCL.from_pretrained(start, head="fresh", do_mlm=False, **settings)
    if rows is None:
        rows = rows_for(settings.get("objective", "simcse"), tokenizer)
    args = SimCSETrainingArguments(
        output_dir=str(folder / "run"),
        max_seq_length=16,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **arguments,
    )
    trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
    trainer.save_model()
    run = trainer.describe_run()
    return WrittenCard(write_card(folder / "run", run=run).read_text(), run)


@pytest.fixture(scope="module")
def card_in(tokenizer):
    """`card_in(folder, settings, rows, **arguments)` writes the card of a run to come."""

    def write(folder, *given, **options):
        return write_card_of_run(folder, tokenizer, *given, **options)

    return write


@pytest.fixture
def card_of(card_in, tmp_path):
    """The same in a folder of the test."""

    def write(*given, **options):
        return card_in(tmp_path, *given, **options)

    return write


# --- objectives and views have what a card says of them ---


def test_every_objective_has_a_summary():
    assert all(objective.summary for objective in OBJECTIVES.values())


def test_the_papers_of_every_objective_are_known():
    cited = set()
    for objective in OBJECTIVES.values():
        cited.update(objective.papers)
    assert cited <= PAPERS.keys()


def test_the_paper_of_every_view_is_known():
    assert {view.paper for view in VIEW_CLASSES.values()} <= PAPERS.keys()


def test_every_view_has_words_of_its_own():
    assert all("words" in vars(view) for view in VIEW_CLASSES.values())


def test_no_two_papers_have_the_same_key():
    assert len({paper.key for paper in PAPERS.values()}) == len(PAPERS)


def test_the_braces_of_every_bibtex_entry_are_closed():
    for paper in PAPERS.values():
        assert paper.bibtex.count("{") == paper.bibtex.count("}")


# --- the objective of a run ---


def link(objective, paper):
    return f"trained with [`{objective}`]({PAPERS[paper].url})"


@dataclass(frozen=True)
class Said:
    """What the card of an objective says."""

    summary: str
    training: str
    papers: set
    settings: dict = field(default_factory=dict)


OBJECTIVE_CARDS = {
    "simcse": Said(
        f"{link('simcse', 'simcse')} without labels, from {DROPOUT}.",
        "(with `temperature` 0.05, `similarity` cosine).",
        {"simcse"},
    ),
    "softmax:0.7+supcon:0.3": Said(
        "on premises with labelled hypotheses.",
        "`softmax.layers` 1).",
        {"liao", "sbert"},
        {"objective_options": {"softmax.layers": 1}},
    ),
    "declutr": Said(
        "without labels on spans of documents.",
        "(with `temperature` 0.05). A masked-LM loss was added with weight 1.",
        {"declutr"},
        {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0},
    ),
    "promptbert": Said(
        "labels, from each sentence in 2 templates.",
        "The positive of a sentence is the same sentence in another template.",
        {"promptbert", "simcse"},
        {"pooler_type": "mask", "templates": TEMPLATES},
    ),
    "diffcse": Said(
        f"{link('diffcse', 'diffcse')} without labels, from {DROPOUT}.",
        "`generator` start",
        {"diffcse", "simcse"},
    ),
    "tsdae": Said(
        f"{link('tsdae', 'tsdae')} without labels, from a view of each sentence (`delete_words`).",
        "The encoder reads the sentence without some of its words (view `delete_words`, rate 0.6).",
        {"tsdae"},
    ),
    "angle": Said(
        f"{link('angle', 'angle')} on scored pairs of sentences.",
        "(with `temperature` 0.05, `angle_weight` 2).",
        {"angle", "cosent"},
        {"objective_options": {"angle_weight": 2.0}},
    ),
}
EVERY_OBJECTIVE = pytest.mark.parametrize("objective", OBJECTIVE_CARDS, scope="module")
#: Those whose rows are no pairs of texts, also not of a text and its dropout view.
WITHOUT_PAIRS = pytest.mark.parametrize(
    "objective",
    [name for name in OBJECTIVE_CARDS if name == "promptbert" or described_objective(name).rows != "texts"],
    scope="module",
)


@pytest.fixture(scope="module")
def folder(objective, tmp_path_factory):
    return tmp_path_factory.mktemp("objective")


@pytest.fixture(scope="module")
def card(objective, folder, card_in, tokenizer):
    """The card of an objective; DiffCSE starts from a masked LM, which is also its generator."""
    settings = {"objective": objective, **OBJECTIVE_CARDS[objective].settings}
    if objective != "diffcse":
        return card_in(folder, settings)
    start = folder / "start"
    AutoModelForCL.from_config(tiny_config(), do_mlm=True).save_pretrained(start)
    tokenizer.save_pretrained(start)
    settings["objective_options"] = {"generator": str(start)}
    return card_in(folder, settings, start=start)


@EVERY_OBJECTIVE
def test_the_summary_of_a_card_says_how_the_model_was_trained(card, objective):
    assert OBJECTIVE_CARDS[objective].summary in card.text


@EVERY_OBJECTIVE
def test_the_section_on_training_has_the_options_of_the_objective(card, objective):
    assert OBJECTIVE_CARDS[objective].training in card.text


@EVERY_OBJECTIVE
def test_the_section_on_training_explains_the_objective(card, objective):
    summary = described_objective(objective).summary
    assert f"The objective is `{objective}`: {summary}" in card.text


@EVERY_OBJECTIVE
def test_a_card_cites_the_papers_of_the_objective_and_no_others(card, objective):
    assert card.papers == OBJECTIVE_CARDS[objective].papers


@EVERY_OBJECTIVE
def test_a_card_shows_no_path_of_this_machine(card, folder):
    assert str(folder) not in card.text


@EVERY_OBJECTIVE
def test_the_tags_name_each_part_of_the_objective(card, objective):
    names = {term.partition(":")[0] for term in objective.split("+")}
    assert names <= set(card.tags)


@EVERY_OBJECTIVE
def test_only_a_model_of_simcse_has_the_tag_simcse(card, objective):
    assert ("simcse" in card.tags) is (objective == "simcse")


@EVERY_OBJECTIVE
@pytest.mark.parametrize("option", ["temperature", "similarity"])
def test_an_option_is_listed_only_where_the_objective_reads_it(card, objective, option):
    is_read = any(option in OBJECTIVES[part].options for part in part_weights(objective))
    assert (f"{option}` " in card.text) is is_read


@WITHOUT_PAIRS
@pytest.mark.parametrize("words", ["on pairs of sentences", "an anchor and a positive", DROPOUT])
def test_a_card_of_other_rows_does_not_speak_of_pairs(card, words):
    assert words not in card.text


INTERNAL = {"mask_token_id", "template_edges", "objective_options"}


@EVERY_OBJECTIVE
def test_internal_settings_are_no_hyperparameters(card):
    assert not INTERNAL & card.hyperparameters.keys()


# --- settings that are read, and others ---


@pytest.fixture(scope="module")
def of_vicreg(card_in, tokenizer, tmp_path_factory):
    """The card of an objective that adds no masked-LM loss, from a checkpoint with the weight of one."""
    folder = tmp_path_factory.mktemp("vicreg")
    config = tiny_config()
    config.simcse = {"training": {"objective": "vicreg", "mlm_weight": 0.7}}
    start = folder / "start"
    AutoModelForCL.from_config(config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    options = {"projector_dim": 16, "variance_weight": 3.0}
    settings = {"objective": "vicreg", "objective_options": options, "mlm_weight": 0.7}
    return card_in(folder, settings, start=start, mlm_probability=0.3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("projector_dim", "16"), ("variance_weight", "3.0"), ("objective", "vicreg")],
)
def test_settings_of_the_objective_are_listed(of_vicreg, name, value):
    assert of_vicreg.hyperparameters[name] == value


@pytest.mark.parametrize("name", ["mlm_weight", "mlm_probability"])
def test_settings_that_the_objective_does_not_read_are_not_listed(of_vicreg, name):
    assert name not in of_vicreg.hyperparameters


@pytest.fixture(scope="module")
def of_masked_lm(card_in, tmp_path_factory):
    """The card of SimCSE with a masked-LM loss."""
    settings = {"temperature": 0.5, "do_mlm": True, "mlm_weight": 0.7}
    return card_in(tmp_path_factory.mktemp("mlm"), settings, mlm_probability=0.3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "0.5"), ("mlm_weight", "0.7"), ("mlm_probability", "0.3")],
)
def test_settings_of_a_masked_lm_loss_are_listed_with_it(of_masked_lm, name, value):
    assert of_masked_lm.hyperparameters[name] == value


# --- objectives of the user ---


OWN_PAPER = """
@inproceedings{near-2020,
  title = {Near},
  url = {https://example.org/near}
}
"""


@pytest.fixture(scope="module")
def near_run(card_in, tmp_path_factory):
    """The folder and the record of a run with an objective of the user."""

    class Near(Objective):
        summary = "the distance of two views"
        papers = ("simcse", "liao", OWN_PAPER)

        def forward(self, batch):
            return (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()

    folder = tmp_path_factory.mktemp("near")
    register("near_losses:Near", Near)
    try:
        run = card_in(folder, {"objective": "near_losses:Near"}).run
    finally:
        del OBJECTIVES["near_losses:Near"]
    return folder / "run", json.loads(json.dumps(run))


@pytest.fixture(scope="module")
def of_near(near_run):
    """The card of this run, as another process writes it from the record."""
    folder, record = near_run
    return WrittenCard(write_card(folder, run=record).read_text())


def test_a_card_of_another_process_describes_an_objective_of_the_user(of_near):
    words = "The objective is `near_losses:Near`: the distance of two views"
    assert words in of_near.text


def test_a_card_of_another_process_links_to_the_papers_of_an_objective_of_the_user(
    of_near,
):
    assert PAPERS["liao"].url in of_near.text


def test_a_card_cites_the_bibtex_entry_of_an_objective_of_the_user(of_near):
    assert OWN_PAPER.strip() in of_near.text


def test_a_paper_that_no_card_can_cite_is_named(near_run, caplog):
    folder, record = near_run
    write_card(folder, run=record | {"objective": {"papers": ["no-such-paper"]}})
    assert "'no-such-paper': give papers a BibTeX entry with a url" in caplog.text


@pytest.fixture(scope="module")
def of_closeness(card_in, tmp_path_factory):
    """Two cards of a model with an objective of the user: of its run, and where nothing has imported the objective."""

    class Closeness(Objective):
        def __init__(self, dim, weight=1.0):
            super().__init__(dim)

    folder = tmp_path_factory.mktemp("closeness")
    settings = {"objective": "closeness", "objective_options": {"weight": 2.0}}
    register("closeness", Closeness)
    try:
        of_run = card_in(folder, settings)
    finally:
        del OBJECTIVES["closeness"]
    return of_run, WrittenCard(write_card(folder / "run").read_text())


@pytest.mark.parametrize(
    "words",
    [
        "trained with the objective `closeness` without labels",
        "`closeness`, which is not part of simcse_hf (with `weight` 2).",
    ],
)
def test_the_card_names_an_objective_of_the_user(of_closeness, words):
    of_run, _ = of_closeness
    assert words in of_run.text


def test_a_card_names_an_objective_of_the_user_that_nothing_has_imported(of_closeness):
    _, without_import = of_closeness
    assert "configured for the objective `closeness`" in without_import.text


def test_a_card_of_an_unknown_objective_cites_simcse(of_closeness):
    _, without_import = of_closeness
    assert without_import.papers == {"simcse"}


# --- rows and views ---


PROMPTBERT = {"objective": "promptbert", "pooler_type": "mask", "templates": TEMPLATES}


@dataclass(frozen=True)
class Rows:
    """Rows of a run with options, and what the card says of them."""

    columns: dict
    description: str
    summary: str
    options: dict = field(default_factory=dict)


EVERY_KIND_OF_ROWS = pytest.mark.parametrize(
    "rows",
    [
        pytest.param(
            Rows(
                {"sent0": TEXTS},
                "single sentences.",
                f" without labels, from {DROPOUT}.",
            ),
            id="single sentences",
        ),
        pytest.param(
            Rows(PAIRS, "an anchor and a positive.", " on pairs of sentences."),
            id="pairs",
        ),
        pytest.param(
            Rows(
                PAIRS,
                "an anchor and a positive.",
                " on pairs of sentences.",
                {"settings": PROMPTBERT},
            ),
            id="pairs in templates",
        ),
        pytest.param(
            Rows(
                TRIPLETS,
                "an anchor, a positive and hard negatives.",
                " on pairs of sentences with hard negatives.",
            ),
            id="triplets",
        ),
        pytest.param(
            Rows(
                PAIRS,
                "a sentence and a later sentence of the same document.",
                "on neighbouring",
                {"view": "next_sentence"},
            ),
            id="neighbours",
        ),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def of_rows(rows, card_in, tmp_path_factory):
    columns = Dataset.from_dict(rows.columns)
    return card_in(tmp_path_factory.mktemp("rows"), rows=columns, **rows.options)


@EVERY_KIND_OF_ROWS
def test_the_card_describes_the_training_rows(rows, of_rows):
    assert f"5 rows of {rows.description}" in of_rows.text


@EVERY_KIND_OF_ROWS
def test_the_summary_says_what_the_model_was_trained_on(rows, of_rows):
    assert rows.summary in of_rows.text


@EVERY_KIND_OF_ROWS
def test_the_card_of_these_rows_speaks_of_no_other_view_of_each_sentence(of_rows):
    assert "from each sentence" not in of_rows.text


@EVERY_KIND_OF_ROWS
def test_a_card_speaks_of_pairs_only_where_the_rows_are_pairs(rows, of_rows):
    assert ("pairs" in of_rows.text) is ("pairs" in rows.summary)


@EVERY_KIND_OF_ROWS
def test_a_view_is_a_hyperparameter_of_single_sentences_only(rows, of_rows):
    assert ("view" in of_rows.hyperparameters) is (len(rows.columns) == 1)


@pytest.fixture(scope="module")
def of_shuffled_words(card_in, tmp_path_factory):
    """The card of a run with a view of both sentences."""
    settings = {"objective": "vicreg", "objective_options": {"projector_dim": 16}}
    view = {"view": "shuffle", "view_rate": 0.25, "view_both": True}
    return card_in(tmp_path_factory.mktemp("view"), settings, **view)


@pytest.mark.parametrize(
    "words",
    [
        "from two views of each sentence (`shuffle`).",
        "(view `shuffle`, rate 0.25); the anchor is changed in the same way.",
    ],
)
def test_the_card_describes_a_view_of_both_sentences_with_its_rate(of_shuffled_words, words):
    assert words in of_shuffled_words.text


def test_a_card_of_a_view_does_not_speak_of_dropout_views(of_shuffled_words):
    assert "dropout views" not in of_shuffled_words.text


def test_a_card_cites_the_paper_of_the_view(of_shuffled_words):
    assert of_shuffled_words.papers == {"vicreg", "non_contrastive"}


# --- around any objective ---


@pytest.fixture(scope="module")
def matryoshka_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("matryoshka")


@pytest.fixture(scope="module")
def of_matryoshka(card_in, matryoshka_folder):
    return card_in(matryoshka_folder, {"matryoshka_dims": [8, 16, 32]})


@pytest.mark.parametrize(
    "words",
    [
        "The objective was also applied to the leading 32, 16, 8 dimensions ([Matryoshka](",
        "| shorter embeddings | the leading 16, 8 dimensions (`truncate_dim`) |",
    ],
)
def test_the_card_names_matryoshka_dimensions(of_matryoshka, words):
    assert words in of_matryoshka.text


def test_a_card_with_matryoshka_dimensions_cites_their_paper(of_matryoshka):
    assert of_matryoshka.papers == {"simcse", "matryoshka"}


@pytest.mark.parametrize(("name", "dim"), [("embeddings", 32), ("shorter", 16)])
def test_the_card_shows_how_to_use_matryoshka_dimensions(of_matryoshka, matryoshka_folder, name, dim):
    code = re.findall(r"```python\n(.*?)```", of_matryoshka.text, re.DOTALL)[0]
    code = code.replace("your-name/run", str(matryoshka_folder / "run"))
    names = {}
    exec(code, names)
    assert names[name].shape == (2, dim)


def test_a_card_without_matryoshka_dimensions_truncates_nothing(card_of):
    assert "truncate_dim" not in card_of().text


# --- without a record ---


@pytest.fixture(scope="module")
def without_record(tmp_path_factory, tokenizer):
    """The card of a model whose config.json alone says what it was made for."""
    folder = tmp_path_factory.mktemp("without_record")
    config = tiny_config(attention_probs_dropout_prob=0.3)
    model = AutoModelForCL.from_config(config, objective="is_bert", matryoshka_dims=[8])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return WrittenCard(write_card(folder).read_text())


@pytest.mark.parametrize(
    "words",
    [
        "| `attention_probs_dropout_prob` | 0.3 |",
        "from a `bert` encoder, configured for the objective `is_bert`.",
        "how the model was trained. According to its config.json: The objective is `is_bert`",
        "the leading 8 dimensions",
    ],
)
def test_without_a_record_the_card_takes_the_objective_from_config_json(without_record, words):
    assert words in without_record.text


def test_without_a_record_a_default_is_not_listed(without_record):
    assert "`hidden_dropout_prob`" not in without_record.text


def test_without_a_record_the_papers_of_config_json_are_cited(without_record):
    assert without_record.papers == {"is_bert", "matryoshka"}
