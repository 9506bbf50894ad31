"""Tests of training pairs: two texts of a row, or any two texts of a group, filtered, cleaned and sampled."""

import gzip
import json
import logging
from pathlib import Path

import pytest

from simcse_hf.cli.build_pairs import build_pairs_main
from simcse_hf.data.overlap import mean_word_f1, word_f1
from simcse_hf.data.positive_pairs import build_positive_pairs
from simcse_hf.data.row_filter import parse_condition

SHARED = Path(__file__).parents[3] / "shared" / "data"

QUESTIONS = """id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate
0\t1\t2\tHow do I cook rice?\tHow is rice cooked?\t1
1\t3\t4\tWhat is a ""cat""?\tWhy is the sky blue?\t0
2\t5\t6\tIs tea good?\tIs tea healthy?\t1
"""


def pairs_of(data):
    return list(zip(data["sent0"], data["sent1"], strict=True))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def conditions(*texts):
    return [parse_condition(text) for text in texts]


def test_duplicate_questions_are_chosen_by_their_label(tmp_path):
    """The layout of Quora's question pairs."""
    path = write(tmp_path / "quora_duplicate_questions.tsv", QUESTIONS)
    data = build_positive_pairs(path, ["question1", "question2"], where=conditions("is_duplicate=1"))
    assert data.column_names == ["sent0", "sent1"]
    assert pairs_of(data) == [("How do I cook rice?", "How is rice cooked?"), ("Is tea good?", "Is tea healthy?")]


def test_paraphrases_without_a_header_are_chosen_by_their_score(tmp_path):
    """The layout of ParaNMT: reference, translation and score between tabs, with unpaired quotation marks."""
    rows = ['so , " it works .\tit works .\t0.71', "no .\tyes !\t0.2", "he said it .\tit was he .\t0.45"]
    path = tmp_path / "para-nmt.txt.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    data = build_positive_pairs(
        path,
        ["reference", "translation"],
        column_names=["reference", "translation", "score"],
        where=conditions("score>=0.4", "score<0.7"),
    )
    assert pairs_of(data) == [("he said it .", "it was he .")]
    everything = build_positive_pairs(path, ["a", "b"], column_names=["a", "b", "score"])
    assert pairs_of(everything)[0] == ('so , " it works .', "it works .")


@pytest.mark.parametrize("layout", ["a row per picture", "a row per caption"])
def test_any_two_captions_of_a_picture_are_a_pair(tmp_path, layout):
    captions = {"one": ["a", "b", "c"], "two": ["d", "e"]}
    if layout == "a row per picture":
        lines = ["\t".join(texts + [""] * (3 - len(texts))) for texts in captions.values()]
        names, options = ["c1", "c2", "c3"], {"columns": ["c1", "c2", "c3"]}
    else:  # the captions of a picture need not be adjacent
        lines = ["one\ta", "two\td", "one\tb", "one\tc", "two\te"]
        names, options = ["picture", "caption"], {"columns": ["caption"], "group_column": "picture"}
    path = write(tmp_path / "captions.tsv", "\n".join(lines))
    data = build_positive_pairs(path, column_names=names, **options)
    assert pairs_of(data) == [("a", "b"), ("a", "c"), ("b", "c"), ("d", "e")]


def test_five_captions_make_ten_pairs_as_in_table_4(tmp_path):
    """31,783 pictures of Flickr30k with 5 captions are the 318k pairs of the paper."""
    path = write(tmp_path / "captions.tsv", "a\tb\tc\td\te\n")
    names = [f"caption{number}" for number in range(5)]
    pairs = pairs_of(build_positive_pairs(path, names, column_names=names))
    assert len(set(pairs)) == 10 and round(31_783 * len(pairs), -3) == 318_000


def test_repeated_empty_and_excluded_texts_make_no_pair_and_are_counted(tmp_path, caplog):
    rows = [{"a": "Same.", "b": "Same."}, {"a": "Left.", "b": " "}, {"a": "Test  it!", "b": "Fine."}]
    path = write(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, [*rows, {"a": "x", "b": "y"}])))
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        data = build_positive_pairs(path, ["a", "b"], exclude=["test it"])
    assert pairs_of(data) == [("x", "y")]
    for part in ("1 texts that occur again", "1 empty texts", "1 excluded texts", "3 groups with fewer than two"):
        assert part in caplog.text


def test_a_random_sample_follows_the_seed_and_keeps_the_order(tmp_path):
    path = write(tmp_path / "pairs.tsv", "\n".join(f"a{n}\tb{n}" for n in range(50)))
    everything = pairs_of(build_positive_pairs(path, ["a", "b"], column_names=["a", "b"]))
    samples = [
        pairs_of(build_positive_pairs(path, ["a", "b"], column_names=["a", "b"], max_rows=9, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert samples[0] == samples[1] != samples[2] and len(samples[0]) == 9
    assert samples[0] == [pair for pair in everything if pair in samples[0]]
    assert samples[0] != everything[:9]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("n=1", ["1", "1.0", " 1 "]),
        ("n!=1", ["0", "one", "", "2.5"]),
        ("n>=1", ["1", "1.0", " 1 ", "2.5"]),
        ("n < 1", ["0"]),
        ("n=one", ["one"]),
    ],
)
def test_conditions_compare_numbers_and_texts(text, kept):
    cells = ["0", "1", "1.0", " 1 ", "one", "", "2.5"]
    condition = parse_condition(text)
    cells = [cell for cell in cells if cell != "one" or condition.sign in ("=", "!=")]
    assert [cell for cell in cells if condition.holds(cell, lambda: "here")] == kept


def test_errors_name_the_file_and_the_row(tmp_path):
    path = write(tmp_path / "q.tsv", QUESTIONS)
    columns = ["question1", "question2"]
    with pytest.raises(ValueError, match=r"q\.tsv: no column 'label'; the columns are 'id', 'qid1'"):
        build_positive_pairs(path, columns, where=conditions("label=1"))
    with pytest.raises(ValueError, match=r"q\.tsv, line 2, column 'question1': expected a number .* question1>3"):
        build_positive_pairs(path, columns, where=conditions("question1>3"))
    with pytest.raises(ValueError, match=r"q\.tsv: no pair could be built; left out: 3 rows that do not fulfil"):
        build_positive_pairs(path, columns, where=conditions("is_duplicate=2"))
    with pytest.raises(ValueError, match=r"q\.tsv, line 1: 6 cells between tabs where 2 columns are named \(a, b\)"):
        build_positive_pairs(path, ["a", "b"], column_names=["a", "b"])
    with pytest.raises(ValueError, match="at least 2 column"):
        build_positive_pairs(path, ["question1"])
    with pytest.raises(ValueError, match=r"absent\.tsv: no such file"):
        build_positive_pairs(tmp_path / "absent.tsv", columns, column_names=columns)
    rows = write(tmp_path / "p.jsonl", '{"a": "x", "b": "y", "g": 1}\n{"a": 3, "b": "z", "g": null}\n')
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2, column 'a': expected a text, got 3"):
        build_positive_pairs(rows, ["a", "b"])
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2, column 'g': the cell is empty"):
        build_positive_pairs(rows, ["b"], group_column="g")
    for text in ("score", "=1", "score>=high"):
        with pytest.raises(ValueError, match="condition"):
            parse_condition(text)


def test_lexical_overlap_is_the_f1_of_two_bags_of_words():
    assert word_f1("a dog and a cat", "A dog!") == pytest.approx(2 * 2 / 7)
    assert word_f1("Rain, rain.", "rain") == pytest.approx(2 / 3)
    assert word_f1("one", "two") == word_f1("...", "!") == 0
    assert word_f1("same words", "words same") == 1
    assert mean_word_f1([("one", "one"), ("one", "two")]) == 0.5


def test_the_command_writes_pairs_without_texts_of_the_test_sets(tmp_path, capsys):
    folder = tmp_path / "downstream" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    rows = [f"main\tMSRvid\t2012\t{n}\t2.5\tA cat {word} .\tNothing {n} ." for n, word in enumerate(("ran", "sat"))]
    for split in ("dev", "test"):
        (folder / f"sts-{split}.csv").write_text("\n".join(rows))
    source = write(tmp_path / "captions.tsv", "1\tA cat ran.\n1\tA dog sat.\n1\tA bird sang.\n2\tx\n2\ty\n")
    output = tmp_path / "pairs.csv"
    command = f"--input {source} --output {output} --column_names id text --columns text --group_column id"
    assert build_pairs_main([*command.split(), "--exclude", str(tmp_path / "downstream"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": str(output),
        "rows": 2,
        "lexical_overlap": pytest.approx(1 / 6),  # one of three words in one pair, none in the other
    }
    assert output.read_text() == "sent0,sent1\nA dog sat.,A bird sang.\nx,y\n"
    with pytest.raises(SystemExit):
        build_pairs_main([*command.split(), "--overwrite", "--where", "label"])
    assert "--where: 'label' is no condition" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has no STS task"):
        build_pairs_main([*command.split(), "--overwrite", "--exclude", str(tmp_path)])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not beside the repository")
def test_flickr30k_captions_become_pairs(tmp_path):
    names = [f"caption{number}" for number in range(1, 6)]
    data = build_positive_pairs(SHARED / "flickr30k" / "captions_test.tsv.gz", names, column_names=names)
    assert 9_900 < len(data) <= 10_000
    assert 0.2 < mean_word_f1(pairs_of(data)) < 0.6
