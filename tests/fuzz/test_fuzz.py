"""Every parser returns all rows of a mutated file, or raises an error of this package that names the file."""

import logging
import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.fuzz import all_targets
from benchmarks.fuzz.campaign import Target, check_input, run_inputs

CORPUS = Path(__file__).parent / "corpus"
TARGETS = {target.name: target for target in all_targets()}
INPUTS = 60  # of each parser; `python -m benchmarks fuzz` runs a million


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("simcse_hf").setLevel(logging.ERROR)
    yield
    logging.getLogger("simcse_hf").setLevel(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_row_of_a_valid_file_is_returned(target, tmp_path):
    for seed in target.seeds:
        assert check_input(target, seed, tmp_path / "input") is None


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_mutated_file_is_parsed_or_refused_by_an_error_that_names_it(target):
    assert run_inputs(target, seed=1, first=0, count=max(5, round(INPUTS * target.share))) == []


@pytest.mark.parametrize(
    "folder", sorted(CORPUS.glob("*/*")), ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)
def test_an_input_that_failed_once_does_not_fail_again(folder, tmp_path):
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert check_input(TARGETS[folder.parent.name], files, tmp_path / "input") is None


# --- the fuzzer itself ----------------------------------------------------------------------------------------------


def run_parser(parse, **options):
    target = Target("test", [{"a.txt": b"a\nb\n"}], parse, **options)
    return [(finding.number, finding.kind) for finding in run_inputs(target, seed=0, first=0, count=3)]


def test_the_fuzzer_finds_a_foreign_exception():
    def parse(folder):
        raise KeyError("a")

    assert run_parser(parse) == [(number, "foreign exception") for number in range(3)]


def test_the_fuzzer_survives_and_reports_the_death_of_a_parser():
    assert run_parser(lambda folder: os.kill(os.getpid(), signal.SIGKILL)) == [(i, "death") for i in range(3)]


def test_the_fuzzer_stops_and_reports_a_parser_that_hangs(monkeypatch):
    monkeypatch.setattr("benchmarks.fuzz.campaign.HANG_SECONDS", 0.05)
    assert run_parser(lambda folder: time.sleep(60)) == [(number, "hang") for number in range(3)]


def test_the_fuzzer_finds_rows_that_are_lost():
    assert run_parser(lambda folder: 1, count_rows=lambda files: 2) == [(i, "lost rows") for i in range(3)]


def test_the_same_seed_makes_the_same_inputs():
    target = TARGETS["csv"]
    assert target.input(3, 7) == target.input(3, 7) != target.input(3, 8)
