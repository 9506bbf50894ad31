"""The frame of every HTML report: one file without network access, for light and dark screens and for paper."""

from pathlib import Path
from typing import Any

import jinja2

from .analysis.drawing import figure_text


def render_page(template: Path, **values: Any) -> str:
    """Fill a template that extends `frame.html` with its blocks `title` and `body`.

    Everything is escaped, so names and texts cannot bring their own HTML. Only values of `markupsafe.Markup` are not.

    Args:
        template (`Path`): The template.
        **values (`Any`): What it names. It also has the filter `figure`, which writes `n/a` for a missing number.

    Returns:
        `str`: The page.
    """
    loader = jinja2.FileSystemLoader([template.parent, Path(__file__).parent])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = figure_text
    return environment.get_template(template.name).render(**values)
