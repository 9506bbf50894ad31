"""The papers that a card cites, read from `papers.bib`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r"^% (?P<name>\S+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n.*?\n\})$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Paper:
    """A BibTeX entry."""

    key: str
    bibtex: str

    def field(self, name: str) -> str:
        """Return a field of the entry, such as `url` or `year`."""
        match = re.search(rf"^  {name} = \{{(.*)\}},?$", self.bibtex, re.MULTILINE)
        if match is None:
            raise KeyError(f"papers.bib: the entry {self.key} has no field {name}")
        return match[1]

    @property
    def url(self) -> str:
        """Where to read the paper."""
        return self.field("url")


def _read_papers() -> dict[str, Paper]:
    text = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")
    return {entry["name"]: Paper(entry["key"], entry["bibtex"]) for entry in _ENTRY.finditer(text)}


PAPERS = _read_papers()


def bibtex_of(names: Iterable[str]) -> str:
    """Return the BibTeX entries of the named papers, each once, in the order of the names."""
    return "\n\n".join(PAPERS[name].bibtex for name in dict.fromkeys(names))
