"""An adaptation from beginning to end: what it writes, how it continues, and that it ships only what helps."""

import json
import re
import shutil

import pytest
from conftest import tiny_config
from evaluation_helpers import write, write_rows
from trainer_helpers import files_of, refuses, sentences, texts
from transformers import BertForMaskedLM

from simcse_hf import SimCSE, adapt
from simcse_hf.apps.adapt import adapt as adapt_module
from simcse_hf.apps.adapt import arms as arms_module
from simcse_hf.apps.adapt import verdict as verdict_module
from simcse_hf.apps.adapt.arms import ARM_NAMES, CONTROL, START, Arm
from simcse_hf.cli.main import main
from simcse_hf.evaluation.tasks import name_general_tasks


@pytest.fixture
def general(tmp_path):
    """A file of scored pairs that share no text with the other files."""
    rows = zip(sentences(40, 11), sentences(40, 12), [n % 6 for n in range(40)], strict=True)
    return str(write_rows(tmp_path / "sts.csv", ["sentence1", "sentence2", "score"], rows))


@pytest.fixture
def settings(tmp_path, checkpoint, general, save_checkpoint, monkeypatch):
    """Settings of an adaptation of the tiny model to 120 sentences, judged on pairs."""
    monkeypatch.setattr(arms_module, "OTHER_POOLERS", ("cls_before_pooler",))
    corpus = write(tmp_path / "corpus.txt", sentences(120))
    rows = zip(sentences(120, 1), sentences(120, 2), [0, 1] * 60, strict=True)
    pairs = write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], rows)
    labels = tmp_path / "triplets.csv"
    texts(24, 3, seed=3).to_csv(labels)
    return dict(
        corpus=str(corpus),
        model=str(checkpoint),
        output=str(tmp_path / "out"),
        task=[f"pairs={pairs}"],
        general=[general],
        labels=(str(labels),),
        pretrained=str(save_checkpoint(BertForMaskedLM(tiny_config()), "pretrained")),
        arms=("untrained", CONTROL, "mlm-labels"),
        steps=4,
        batch_size=4,
        seeds=1,
    )


@pytest.fixture
def run(settings, monkeypatch):
    """`run(arms=("untrained",))` adapts with these settings in place of the usual ones; it times and draws nothing."""
    monkeypatch.setattr(adapt_module._Adaptation, "_training_seconds", lambda self, arm: 1.0)
    monkeypatch.setattr(adapt_module, "draw", lambda *_: None)
    return lambda **changes: adapt(**settings | changes).to_dict()


@pytest.fixture
def trained(monkeypatch):
    """The name and the seed of each arm that is trained."""
    runs = []
    train = Arm.train

    def noted(arm, seed, folder):
        runs.append((arm.name, seed))
        return train(arm, seed, folder)

    monkeypatch.setattr(Arm, "train", noted)
    return runs


def judged(monkeypatch, *lows):
    """Let the interval of each comparison of the verdict begin at the next of `lows`."""
    ends = iter(lows)

    def interval(task, *results, **options):
        low = next(ends) if task.source.endswith("part 2") else 0.0
        return low + 1, low, low + 2

    monkeypatch.setattr(verdict_module, "paired_interval", interval)


def prefer(monkeypatch, name):
    """Let an arm look best on dev."""
    measure = adapt_module._Adaptation._measure

    def better(self, arm):
        found = measure(self, arm)
        return found | {"dev": 200.0} if arm == name else found

    monkeypatch.setattr(adapt_module._Adaptation, "_measure", better)


def without_times(document):
    """The text of a document without what depends on the clock."""
    return re.sub(r'"seconds": [\d.e-]+', "", json.dumps(document))


def test_text_first_and_labels_then_is_judged_against_the_present_model_and_labels_alone(
    settings, monkeypatch, tmp_path
):
    judged(monkeypatch, 0.5, -0.5)
    prefer(monkeypatch, "mlm-labels")
    write(tmp_path / "corpus.txt", [f"{text} zebra" for text in sentences(120)])  # which becomes a token
    result = adapt(**settings, extend_tokenizer=9).to_dict()
    assert result == json.loads((tmp_path / "out/adaptation.json").read_text())
    names = [arm["name"] for arm in result["arms"]]
    assert names[0] == START and names[-2:] == [CONTROL, "mlm-labels"]
    assert {sum(stage["steps"] for stage in arm["stages"]) for arm in result["arms"][-2:]} == {4}
    assert [stage["method"] for stage in result["chosen"]["stages"]] == ["mlm", "labels"]
    on_pairs = [each for each in result["comparisons"] if each["task"] == "pairs"]
    assert [(each["against"], each["verdict"]) for each in on_pairs] == [(START, "gain"), (CONTROL, "no gain")]
    assert "gain: +1.50 [+0.50, +2.50] on pairs" in result["summary"]
    assert "the text of the domain did not help: +0.50 [-0.50, +1.50] over pretrained-labels" in result["summary"]

    model = SimCSE(tmp_path / "out/model", device="cpu")
    assert model.pooler_type == "avg" and "zebra" in model.tokenizer.get_vocab()
    card = (tmp_path / "out/model/README.md").read_text()
    assert "### Adaptation" in card and "+1.50 [+0.50, +2.50]" in card
    assert "3 steps of `mlm` on `text.jsonl`" in card
    assert "then 1 steps of `simcse` on `labels1-triplets.jsonl`" in card
    assert "| general sts | spearman | present |" in card
    assert str(tmp_path) not in card + (tmp_path / "out/model/adaptation.json").read_text()
    assert (tmp_path / "out/arms.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_gain_the_present_model_is_kept_bit_for_bit(run, monkeypatch, checkpoint, tmp_path):
    judged(monkeypatch, -0.5)
    prefer(monkeypatch, CONTROL)
    result = run()
    assert result["verdict"] == "no gain" and result["chosen"]["name"] == CONTROL
    assert "no arm with it was better on dev; as many rows can show a gain of 1.0 or more" in result["summary"]
    assert files_of(tmp_path / "out/model") == files_of(checkpoint)


def test_if_nothing_beats_the_present_model_there_is_no_gain_and_nothing_is_repeated(
    run, monkeypatch, checkpoint, tmp_path
):
    prefer(monkeypatch, START)
    result = run(arms=("untrained",), general=())
    assert result["verdict"] == "no gain" and result["chosen"]["name"] == START and result["seeds"] == []
    assert result["before"] == result["after"] and result["difference"] == 0
    assert result["arms"][0]["interval"] == result["interval"] == []
    assert result["summary"].startswith("no gain: no arm was better than the present model on dev")
    general = result["comparisons"][-1]
    assert general["task"] == "general sts" and general["units"] == 1000, "the dev set of the sample, if none is named"
    assert files_of(tmp_path / "out/model") == files_of(checkpoint)
    monkeypatch.setattr(adapt_module, "_Adaptation", None)
    assert run(arms=("untrained",), general=()) == result


def test_an_adaptation_killed_in_every_run_ends_with_the_verdict_and_the_model_of_one_that_was_not(
    run, settings, monkeypatch, tmp_path
):
    prefer(monkeypatch, "mlm-labels")
    settings["arms"] = (CONTROL, "mlm-labels")
    judged(monkeypatch, *[0.5, -0.5] * 3)
    whole = run()
    model = files_of(tmp_path / "out/model")
    shutil.rmtree(tmp_path / "out")

    train = Arm.train_stage
    begun, finished = [], []

    def killed_once(arm, stage, start, seed, output):
        if output.is_dir():  # that of a few steps, which are timed before
            return train(arm, stage, start, seed, output)
        name = stage.method, stage.steps, seed, output.parent.name
        begun.append(name)
        if begun.count(name) == 1:
            output.mkdir()
            (output / "model.safetensors").write_bytes(b"incomplete")
            raise KeyboardInterrupt
        train(arm, stage, start, seed, output)
        finished.append(name)

    monkeypatch.setattr(Arm, "train_stage", killed_once)
    kills = 0
    while True:
        try:
            continued = run()
            break
        except KeyboardInterrupt:
            kills += 1
    # The three stages of the two arms, with the seed that chooses an arm and with the seed of the verdict.
    assert kills == 6
    assert len(finished) == len(set(finished)) == 6
    assert without_times(continued) == without_times(whole)
    files = files_of(tmp_path / "out/model")
    different = {name.name for name, content in files.items() if content != model[name]}
    assert files.keys() == model.keys() and different <= {"adaptation.json"}  # which holds times
    assert [path.name for path in (tmp_path / "out/search").iterdir() if path.is_dir()] == []


def test_the_choice_never_sees_the_held_out_part(run, monkeypatch):
    seen = []
    score = adapt_module.score_run

    def noted(run, model, tasks, *rest, **options):
        seen.extend(tasks.values())
        return score(run, model, tasks, *rest, **options)

    monkeypatch.setattr(adapt_module, "score_run", noted)
    arms = run(arms=("untrained",))["arms"]
    parts = "".join(task.source[-1] for task in seen if "part" in task.source)  # and not the general tasks
    first = parts.index("2")
    assert set(parts[first:]) == {"2"} and first >= len(arms)
    dev, held_out = ({text for task in seen if task.source.endswith(end) for text in task.texts} for end in "12")
    assert dev and held_out and not dev & held_out


def test_training_reads_no_text_that_a_task_scores(settings, tmp_path, monkeypatch, caplog):
    of_corpus, of_task = sentences(120)[0], sentences(120, 1)[0]
    shared = zip([of_corpus, of_task] * 2, sentences(4, 12), [1, 2, 3, 4], strict=True)
    write_rows(tmp_path / "sts.csv", ["sentence1", "sentence2", "score"], shared)
    labels = ["text,label", *(f"text {n},{n % 2}" for n in range(8)), f"{of_task.upper()},1"]
    write(tmp_path / "labels.csv", labels)
    read = {}

    def train(arm, stage, model, seed, output):
        read[stage.method] = stage.file.read_text().lower()
        raise ValueError("enough is seen")

    monkeypatch.setattr(Arm, "train_stage", train)
    adapt(**settings | {"labels": (str(tmp_path / "labels.csv"),), "arms": ("labels", "simcse")})
    assert "text 7" in read["labels"] and of_task not in read["labels"]
    assert sentences(120)[1] in read["simcse"] and of_corpus not in read["simcse"]
    assert "1 of 6 texts of the general tasks are also texts of --task" in caplog.text


def test_the_verdict_has_new_seeds_and_says_what_the_arm_changes_on_general_tasks(
    settings, monkeypatch, trained, general, tmp_path
):
    prefer(monkeypatch, CONTROL)
    monkeypatch.setattr(adapt_module, "remove", lambda path: None)  # the models of the arms
    result = adapt(**settings | {"arms": (CONTROL,), "seeds": 2, "steps": 20})
    assert trained == [(CONTROL, seed) for seed in (42, 43, 44)]
    assert result.seeds == [43, 44] and result.chosen["seed"] in (43, 44)
    task = name_general_tasks([general])["sts"]
    models = [tmp_path / "checkpoint"]
    for seed in (43, 44):
        models += (tmp_path / "out/search/runs").glob(f"{CONTROL}-{seed}-*/stage1")
    before, *after = [task.evaluate(SimCSE(model, device="cpu")).metrics["spearman"] for model in models]
    _, change = result.comparisons
    assert change.task == "general sts" and change.units == 40 and change.against == START
    assert (change.before, change.after) == pytest.approx((before, sum(after) / 2), abs=1e-3)
    low, high = change.interval
    assert low < change.difference < high
    assert f"also general sts (spearman): {change} over present" in str(result)


def test_an_arm_that_fails_does_not_end_the_adaptation(run, monkeypatch):
    train = Arm.train

    def diverges(arm, *rest):
        if arm.name == "mlm-labels":
            raise FloatingPointError("loss is nan at or before step 3")
        return train(arm, *rest)

    monkeypatch.setattr(Arm, "train", diverges)
    arms = {arm["name"]: arm for arm in run()["arms"]}
    assert "loss is nan" in arms["mlm-labels"]["failure"] and arms["mlm-labels"]["dev"] is None
    assert arms[CONTROL]["failure"] == "" and arms[CONTROL]["dev"] is not None


def test_arms_that_do_not_fit_into_the_budget_are_left_out_by_name_before_training(run, trained, monkeypatch):
    costs = {"labels": 60.0, CONTROL: 60.0, "mlm-labels": 6000.0, "tsdae-labels": 60.0}
    monkeypatch.setattr(adapt_module._Adaptation, "_training_seconds", lambda self, arm: costs[arm.name])
    left_out = run(arms=("untrained", *costs), budget=15.0)["left_out"]
    assert list(left_out) == ["mlm-labels"] and "--budget leaves" in left_out["mlm-labels"]
    names = {name for name, _ in trained}
    assert "mlm-labels" not in names and {CONTROL, "tsdae-labels"} <= names


def test_the_arms_follow_from_labels_the_pretrained_encoder_and_documents(run, settings, documents, monkeypatch):
    monkeypatch.setattr(adapt_module._Adaptation, "_training_seconds", lambda self, arm: 1e9)
    of_spans = {"spans", "spans-labels"}
    assert run(arms=())["left_out"].keys() == set(ARM_NAMES) - {"untrained"} - of_spans
    assert of_spans <= run(corpus=documents, arms=(), output=settings["output"] + "2")["left_out"].keys()
    less = {"labels": (), "pretrained": None, "output": settings["output"] + "3"}
    left_out = run(**less, arms=("labels", "simcse", "spans"))["left_out"]
    assert "--labels" in left_out["labels"] and "documents" in left_out["spans"], "no arm is dropped without a word"


@pytest.fixture
def documents(tmp_path):
    """A file of 70 documents of five sentences, with an empty line after each."""
    lines = []
    for number in range(70):
        lines += [*sentences(5, seed=10 + number), ""]
    return str(write(tmp_path / "documents.txt", lines))


def test_an_arm_of_spans_is_trained_and_judged(run, documents):
    result = run(corpus=documents, arms=("spans",), steps=2)
    assert [arm["name"] for arm in result["arms"] if arm["dev"] is not None] == [START, "spans"]
    assert result["verdict"]


def test_what_cannot_be_done_is_refused_by_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "few.csv", ["sentence1,sentence2,label", "a cat,a dog,1", "a cat,a bird,0"])
    refused = (
        ({"task": ()}, "--task"),
        ({"steps": 0}, "steps above 0"),
        ({"batch_size": 0}, "batch_size above 0"),
        ({"seeds": 0}, "seeds above 0"),
        ({"budget": -1}, "budget above 0"),
        ({"extend_tokenizer": 0}, "extend_tokenizer above 0"),
        ({"bf16": "no"}, "bf16 true or false"),
        ({"arms": ("mlm-label",)}, "--arms mlm-label"),
        ({"labels": ()}, "--pretrained --labels"),
        ({"arms": ("labels",), "labels": (), "pretrained": None}, "labels --labels --pretrained"),
        ({"model": "nowhere/at-all"}, "nowhere/at-all: there is no such"),
        ({"task": "pairs=few.csv"}, "few.csv rows"),
        ({"labels": ("corpus.txt",)}, "corpus.txt label"),
    )
    for number, (changes, words) in enumerate(refused):
        with refuses(words):  # and not because another adaptation has begun in the folder
            run(**changes, output=str(tmp_path / str(number)))


def test_a_missing_file_is_found_before_an_earlier_adaptation_is_deleted(run, tmp_path):
    record = write(tmp_path / "out/search/record.json", ["{}"])
    for missing in ({"corpus": "nosuch.csv"}, {"labels": "nosuch.csv"}, {"general": ["pairs=nosuch.csv"]}):
        with refuses("nosuch.csv: there is no such file"):
            run(**missing, overwrite=True)
        assert record.exists()


def test_files_of_something_else_are_neither_used_nor_deleted(run, tmp_path):
    write(tmp_path / "out/thesis.tex", ["years of work"])
    for overwrite in (False, True):
        with refuses("out holds something else"):
            run(overwrite=overwrite)
    assert (tmp_path / "out/thesis.tex").read_text() == "years of work\n"


def test_a_changed_input_is_refused_by_name(run, checkpoint, tmp_path):
    run(arms=("untrained",))
    weights = checkpoint / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with refuses("digest model.safetensors"):
        run(arms=("untrained",))
    weights.write_bytes(before)
    write(tmp_path / "corpus.txt", sentences(121))
    with refuses("digest corpus.txt"):
        run(arms=("untrained",))


def test_the_command_refuses_other_arguments_and_starts_again_on_request(settings, capsys):
    line = "adapt {corpus} --model {model} --output {output} --json --quiet --arms untrained".format(**settings)
    words = [*line.split(), "--task", *settings["task"], "--general", *settings["general"]]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["arms"] and result["arguments"]["budget"] == 40.0
    assert main([*words, "--steps", "7"]) == 2
    assert "steps: 400 there, 7 here" in capsys.readouterr().err
    assert main([*words, "--steps", "7", "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["arguments"]["steps"] == 7
