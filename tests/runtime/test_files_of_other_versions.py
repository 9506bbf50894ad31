"""A result file that is damaged, or that another version wrote, is refused by its name, with what to do."""

import json

import pytest

from simcse_hf.apps.adapt.verdict import Adaptation
from simcse_hf.apps.study.result import Study
from simcse_hf.evaluation.compare import Comparison
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.runtime.errors import DataError
from simcse_hf.training.run_results import Results

#: What reads each file, and a table in it whose entries decide the arguments of a class.
READERS = {
    "adaptation.json": (Adaptation, "comparisons"),
    "study.json": (Study, "outcomes"),
    "compared.json": (Comparison, "identities"),
    "evaluated.json": (Evaluation, "protocol"),
    "results.json": (Results, "general"),
}


#: What some of them must have.
WHOLE = {"summary": "", "baseline": "", "scores": {}, "differences": {}, "results": {}, "dev_metric": None}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_another_version_is_refused_by_its_name(tmp_path, name):
    cls, table = READERS[name]
    path = tmp_path / name
    source = path if name in ("compared.json", "evaluated.json") else tmp_path
    for of_table in (5, {"new": 5}, [{"new": 5}]):
        path.write_text(json.dumps(WHOLE | {table: of_table}))
        if of_table != 5 and table == "protocol":  # whose other entries are left out
            continue
        with pytest.raises(DataError, match=rf"{name} is damaged, or was written by another version \(.*\)\. \w"):
            cls.read(source)
