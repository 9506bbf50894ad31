"""A threshold is chosen on one half of labelled pairs, measured on the other, saved with the model, and used."""

import numpy as np
import pytest
import torch
from cli_helpers import card_main, status
from conftest import VOCABULARY
from encoding_helpers import perturb, random_texts
from evaluation_helpers import write
from sklearn.metrics import f1_score, precision_score, recall_score
from trainer_helpers import refuses

import simcse_hf
from simcse_hf import AutoModelForCL, SimCSE, index, search
from simcse_hf.cli.main import main
from simcse_hf.encoding import probes as probes_module
from simcse_hf.evaluation.bootstrap import divide_groups
from simcse_hf.evaluation.threshold import choose_threshold, describe_threshold
from simcse_hf.runtime.files import read_json


def labelled(n):
    """Pairs of which those labelled 1 have higher cosines on average."""
    random = np.random.default_rng(0)
    gold = (random.random(n) < 0.4).astype(int)
    similarity = np.round(np.clip(random.normal(0.3 + 0.3 * gold, 0.15), -1, 1), 2)  # with ties
    return {"similarity": similarity, "gold": gold, "group": np.arange(n)}


@pytest.mark.parametrize("precision", [None, 0.7, 0.9])
def test_the_choice_is_the_best_of_all_thresholds_on_the_first_half(precision):
    scores = labelled(600)
    found = choose_threshold(scores, precision, "pairs.csv")
    first = divide_groups(scores["group"], 0.5, 0, "pairs.csv")
    similarity, gold = scores["similarity"], scores["gold"]

    def value(cosine):
        answers = gold[first], similarity[first] >= cosine
        if precision is None:
            return f1_score(*answers)
        return recall_score(*answers) if precision_score(*answers, zero_division=0) >= precision else -1

    assert value(found["cosine"]) == pytest.approx(max(map(value, np.unique(similarity))))
    answers = gold[~first], similarity[~first] >= found["cosine"]
    measured = [100 * precision_score(*answers), 100 * recall_score(*answers)]
    assert [found["precision"][0], found["recall"][0]] == pytest.approx(measured, abs=0.01)
    for share, low, high in (found["precision"], found["recall"]):
        assert low < share < high < low + 25
    assert found["goal"] == ("f1" if precision is None else f"precision={precision}")


TENTH = {"similarity": np.linspace(0, 1, 200), "gold": np.arange(200) >= 184, "group": np.arange(200)}


def test_a_precision_without_an_error_has_the_interval_of_as_many_draws_as_there_are_groups():
    numbers = np.repeat(np.arange(200), 3)
    similarity = (numbers + 200 * (numbers >= 120)) / 400
    scores = {"similarity": similarity, "gold": numbers >= 120, "group": numbers}
    found = choose_threshold(scores, 0.95, "x")
    other = ~divide_groups(numbers, 0.5, 0, "x")
    n = len(np.unique(numbers[other & (similarity >= found["cosine"])]))
    assert found["precision"] == [100, pytest.approx(100 * n / (n + 1.96**2), abs=0.01), 100]


@pytest.mark.parametrize(
    "change, precision, message",
    [
        ({"similarity": -labelled(200)["similarity"]}, 0.99, "no threshold has a precision of 0.99"),
        ({"gold": np.arange(200) == 3}, None, "one half of the 200 pairs has pairs of a single label"),
        (TENTH, None, "only [1-9] pairs of the half that chooses reach"),
    ],
)
def test_what_cannot_be_chosen_or_measured_is_an_error(change, precision, message):
    with pytest.raises(ValueError, match=f"pairs.csv: .*{message}"):
        choose_threshold(labelled(200) | change, precision, "pairs.csv")
    choose_threshold(TENTH | {"gold": np.arange(200) >= 150}, None, "pairs.csv")


def test_a_precision_below_the_goal_on_the_half_that_measures_is_a_warning(caplog):
    scores = labelled(600)
    choose_threshold(scores | {"similarity": scores["gold"] / 2}, 0.8, "pairs.csv")
    assert not caplog.text
    first = divide_groups(scores["group"], 0.5, 0, "x")
    choose_threshold(scores | {"gold": np.where(first, scores["gold"], np.arange(600) % 4 == 0)}, 0.8, "pairs.csv")
    assert "pairs.csv: the threshold chosen for a precision of 0.8 has 0." in caplog.text


WORDS = [word for word in VOCABULARY if word.isalpha()]


@pytest.fixture
def pairs(tmp_path):
    """Pairs with equal (1) or with unlike (0) words; no text occurs twice."""
    texts = list(dict.fromkeys(random_texts(300, words=(6, 7))))
    rows = [f"{text},{text} {WORDS[0]},1" for text in texts[:80]]
    rows += [f"{a},{b},0" for a, b in zip(texts[80:160], texts[160:240], strict=True)]
    return write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *rows])


def evaluate(model, pairs, words):
    return main(f"evaluate --model {model} --task pairs={pairs} {words}".split())


@pytest.fixture
def with_threshold(checkpoint, pairs, monkeypatch):
    monkeypatch.setattr(probes_module, "PROBES", WORDS[:4])  # the tiny vocabulary has none of the real ones
    assert evaluate(checkpoint, pairs, "--threshold f1 --save_threshold --quiet") == 0
    return checkpoint


def test_the_threshold_is_saved_and_used(checkpoint, pairs, tmp_path, capsys):
    file = checkpoint / "config.json"
    before = read_json(file)
    with refuses("has no saved threshold simcse-hf evaluate --save_threshold"):
        SimCSE(checkpoint).is_similar("a", "b")
    words = f"--threshold precision=0.9 --save_threshold --output {tmp_path / 'result.json'}"
    assert evaluate(checkpoint, pairs, words) == 0
    printed = capsys.readouterr().out
    threshold = read_json(tmp_path / "result.json")["threshold"]
    assert f"threshold: written into {file}" in printed
    assert f"threshold: {describe_threshold(threshold)}" in printed
    after = read_json(file)
    saved = after.pop("similarity_threshold")
    assert after == before and saved.items() >= threshold.items() and threshold["chosen_on"] == 80

    loaded = SimCSE(checkpoint)
    assert loaded.threshold == threshold["cosine"]
    first, second = WORDS[:2]
    assert loaded.is_similar(first, first) is True
    similar = loaded.similarity(first, [first, second]) >= loaded.threshold
    assert loaded.is_similar(first, [first, second]).tolist() == similar.tolist()
    loaded.save_pretrained(tmp_path / "copy")
    assert SimCSE(tmp_path / "copy").threshold == loaded.threshold
    again = simcse_hf.evaluate(loaded, task=[f"pairs={pairs}"], threshold="f1", save_threshold=True)
    assert loaded.threshold == again.threshold["cosine"] == SimCSE(checkpoint).threshold
    assert again.threshold_file == str(file)


#: The weights change by less than a few cosines show.
CHANGES = {
    "other weights": lambda model: perturb(model.model, 1e-5),
    "max_length 40 there, 6 here": lambda model: setattr(model, "max_length", 6),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_threshold_is_refused_after_its_model_has_changed_in_memory(reason, with_threshold, tmp_path, caplog):
    model = SimCSE(with_threshold)
    assert model.is_similar(WORDS[0], WORDS[0])
    CHANGES[reason](model)
    with refuses(f"does not fit this model: {reason}"):
        model.is_similar(WORDS[0], WORDS[0])
    model.save_pretrained(tmp_path / "changed")
    assert "its threshold does not fit this model and is not saved" in caplog.text
    with refuses("has no saved threshold"):
        SimCSE(tmp_path / "changed").threshold  # noqa: B018


def test_a_threshold_holds_in_half_precision_and_with_other_prompts_of_search_and_not_with_another_pooler(
    with_threshold,
):
    model = SimCSE(with_threshold, dtype=torch.bfloat16)
    model.prompts["query"] = "a "
    saved = read_json(with_threshold / "config.json")["similarity_threshold"]
    assert model.threshold == saved["cosine"]
    with refuses("does not fit this model: a few fixed"):
        SimCSE(with_threshold, pooler_type="cls_before_pooler").threshold  # noqa: B018
    trained = AutoModelForCL.from_pretrained(with_threshold)
    perturb(trained, 1e-5).save_pretrained(with_threshold)
    with refuses("does not fit this model: other weights"):
        SimCSE(with_threshold).threshold  # noqa: B018


def test_the_results_are_written_although_no_threshold_can_be_chosen(checkpoint, tmp_path, capsys, caplog):
    rows = [f"{WORDS[0]},{text} {WORDS[-i]},{i % 2}" for i, text in enumerate(WORDS)]
    star = write(tmp_path / "star.csv", ["sentence1,sentence2,label", *rows])
    assert evaluate(checkpoint, star, f"--threshold f1 --output {tmp_path / 'out.json'}") == 2
    assert "Give pairs with more different texts" in capsys.readouterr().err
    document = read_json(tmp_path / "out.json")
    assert "average_precision" in document["results"]["pairs"] and "threshold" not in document
    assert "pairs: average_precision" in caplog.text


def test_training_removes_the_threshold_of_the_model_it_starts_from(with_threshold, make):
    model = AutoModelForCL.from_pretrained(with_threshold)
    assert "similarity_threshold" in model.config.to_dict()
    make(model=model)
    assert "similarity_threshold" not in model.config.to_dict()


def test_search_uses_the_saved_threshold(with_threshold, tmp_path):
    texts = write(tmp_path / "texts.txt", WORDS[:30])
    folder, short = (str(tmp_path / name) for name in ("index", "short"))
    index(texts, folder, model=with_threshold)
    found = []
    for threshold in ("saved", SimCSE(with_threshold).threshold):
        [each] = search(WORDS[0], folder, top_k=30, threshold=threshold)
        found.append(each.results)
    assert found[0] == found[1] and 0 < len(found[0]) < 30
    index(texts, short, model=with_threshold, truncate_dim=8)
    with pytest.raises(ValueError, match="threshold saved .* 8 dimensions only"):
        search(WORDS[0], short, threshold="saved")


def test_the_card_gives_the_threshold_and_what_it_reaches(with_threshold, pairs, caplog):
    assert card_main([str(with_threshold)]) == 0
    saved = read_json(with_threshold / "config.json")["similarity_threshold"]
    card = " ".join((with_threshold / "README.md").read_text().split())
    assert f"`SimCSE.is_similar` calls two texts similar from {describe_threshold(saved)}" in card
    assert evaluate(with_threshold, pairs, "--threshold precision=0.6 --save_threshold") == 0
    assert "chosen for precision=0.6" in (with_threshold / "README.md").read_text()
    (with_threshold / "README.md").write_text("My model.")
    assert evaluate(with_threshold, pairs, "--threshold f1 --save_threshold") == 0
    assert "README.md, which this package did not write" in caplog.text
    assert (with_threshold / "README.md").read_text() == "My model."


@pytest.mark.parametrize(
    "words, message",
    [
        ("--threshold f1", "add --task pairs=FILE"),
        ("--threshold f2", "must be f1, or precision=P"),
        ("--save_threshold", "add --threshold f1"),
        ("--threshold f1 --save_threshold --task pairs=p.csv", "org/name is none"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_model_is_loaded(words, message, tmp_path, capsys):
    scored = write(tmp_path / "sts.csv", ["sentence1,sentence2,score", "a,b,1", "c,d,2"])
    assert status(*f"evaluate --model org/name --pairs {scored} {words}".split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
