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
_OWN_ENTRY = re.compile(r"@\w+\{(?P<key>[^,]+),.*\burl\s*=\s*[{\"](?P<url>[^}\"]+)[}\"].*\}", re.DOTALL)


def find_paper(name: str) -> Paper | None:
    """Return the paper that an objective names.

    Args:
        name (`str`): The name of an entry of `papers.bib`, or, of an objective of a user, a BibTeX entry with a `url`.

    Returns:
        `Paper`, *optional*: The paper; `None` if the name is neither.
    """
    if name in PAPERS:
        return PAPERS[name]
    entry = _OWN_ENTRY.fullmatch(name.strip())
    return Paper(entry["key"].strip(), entry[0], entry["url"]) if entry else None
