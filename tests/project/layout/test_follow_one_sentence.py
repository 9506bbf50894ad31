"""The page that follows one sentence names calls that happen, in the order in which they happen."""

import re
import sys
from pathlib import Path

from docs_helpers import text_of
from trainer_helpers import KEEPS_BEST, arguments

import simcse_hf
from simcse_hf import AutoModelForCL, SimCSETrainer, load_text_dataset
from simcse_hf.data.sample import sample_files

ROW = re.compile(r"^\| (.*) \| `(\S+\.py)` \| `(\S+)` \|", re.MULTILINE)


def test_the_calls_of_the_page_happen_in_its_order(tmp_path):
    root = f"{Path(simcse_hf.__file__).parent}/"
    calls = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.setdefault((code.co_filename.removeprefix(root), code.co_qualname), len(calls))

    corpus, encoder = sample_files()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        rows = load_text_dataset(str(corpus.train_sentences))
        model = AutoModelForCL.from_pretrained(str(encoder), mlp_only_train=True)
        args = arguments(tmp_path, **KEEPS_BEST)
        trainer = SimCSETrainer(model, args, train_dataset=rows, dev_set=str(corpus.dev))
        trainer.train()
        trainer.save_model()
        trainer.create_model_card()
    finally:
        sys.setprofile(before)
    rows = ROW.findall(text_of("docs/architecture.md"))
    stations = [int(station.split()[0]) for station, _, _ in rows if station]
    assert stations == list(range(1, 11))
    assert len(rows) <= 24
    listed = [(file, call) for _, file, call in rows]
    assert [call for call in listed if call not in calls] == []
    assert sorted(listed, key=calls.get) == listed
