"""Write the address of the repository into what the package index and citations show, before a release is built.

    python tools/name_address.py https://github.com/OWNER/simcse_hf v0.4.0

The links and the picture of README become absolute, pyproject.toml gets the addresses of the repository and of the
changelog, and CITATION.cff gets `repository-code`. The workflow of a release knows the address; the sources do not.
"""

import argparse
import re
from pathlib import Path


def name_address(folder: Path, address: str, tag: str) -> None:
    """Write an address into the files of a checkout."""
    readme, project, citation = (folder / name for name in ("README.md", "pyproject.toml", "CITATION.cff"))

    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"!\[([^\]]*)\]\((?!\w+:)", rf"![\1]({address}/raw/{tag}/", text)
    text = re.sub(r"\]\((?![a-z]+:|#)", f"]({address}/blob/{tag}/", text)
    readme.write_text(text, encoding="utf-8")

    urls = f'[project.urls]\nRepository = "{address}"\nChangelog = "{address}/blob/{tag}/CHANGELOG.md"\n'
    project.write_text(project.read_text(encoding="utf-8").replace("[project.urls]\n", urls), encoding="utf-8")

    with citation.open("a", encoding="utf-8") as stream:
        stream.write(f"repository-code: {address}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="address of the repository")
    parser.add_argument("tag", help="tag of the release")
    options = parser.parse_args()
    name_address(Path(), options.address, options.tag)


if __name__ == "__main__":
    main()
