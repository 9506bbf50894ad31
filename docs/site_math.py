"""A hook of mkdocs that turns equations into MathML, which browsers draw without a script or a request."""

import re

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.DOTALL | re.MULTILINE)
_STYLE = 'class="equation" style="font-size: 120%; overflow: auto hidden; padding: 0.4em 0"'
_INLINE = re.compile(r"\$`([^`\n]+)`\$")


def on_page_markdown(markdown, page, config, files):
    """Replace `$$` blocks and inline `` $`x`$ ``, as GitHub draws them as well."""
    markdown = _BLOCK.sub(lambda m: f"<div {_STYLE}>{_mathml(m[1], 'block')}</div>", markdown)
    return _INLINE.sub(lambda m: _mathml(m[1], "inline"), markdown)


def _mathml(latex, display):
    return " ".join(convert(latex, display=display).split())
