"""The papers that cards cite, from `papers.bib`."""

import re
from pathlib import Path
from typing import NamedTuple


class Paper(NamedTuple):
    """A BibTeX entry with its key, and where to read the paper."""

    key: str
    bibtex: str
    url: str


_ENTRY = re.compile(
    r"^% (?P<name>\S+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n.*?^  url = \{(?P<url>[^}]+)\}.*?^\})$",
    re.MULTILINE | re.DOTALL,
)
PAPERS = {}
for _entry in _ENTRY.finditer(Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")):
    PAPERS[_entry["name"]] = Paper(*_entry.group("key", "bibtex", "url"))
