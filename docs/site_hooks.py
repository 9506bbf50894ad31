"""What the documentation site adds to mkdocs: links into the repository, Markdown copies of pages, and llms.txt."""

import posixpath
import re
import shutil
from pathlib import Path

_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")
#: Code within a line, whose options a browser would break after their hyphens.
_INLINE_CODE = re.compile(r"(?<!<span></span>)<code>[^<]*</code>")
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z]\w*)")


def on_page_markdown(markdown, page, config, files):
    """Turn links to files outside docs/ into the path of the file, because the site does not hold them.

    On the page methods.md, `[results](../benchmarks/results/cpu.json)` becomes
    ``results (`benchmarks/results/cpu.json`)``. A link to a page is left as it is, and a text that only repeats the
    path is left out.
    """

    def replace(match):
        text, target, _ = match.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_path), target))
        if path.startswith("docs/"):
            return match.group(0)
        if text.strip("`") in path:
            return f"`{path}`"
        in_parentheses = markdown[match.start() - 1] == "("
        return f"{text}, `{path}`" if in_parentheses else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)


def on_page_content(html, page, config, files):
    """Keep options and scores on one line, and show docstrings without the marks of their dialect.

    A browser ends a line after the hyphens of `--seeds`, and around the sign of "80.5 ± 0.2".
    """
    if page.file.src_path == "api.md":
        html = _without_marks(html)
    html = re.sub(r"(\d) ± (\d)", r"\1&nbsp;±&nbsp;\2", html)
    return _INLINE_CODE.sub(lambda code: _OPTION.sub(r'<span class="option">\1</span>', code[0]), html)


def _without_marks(html):
    """Show "``texts (`str`, *optional*)``", which mkdocstrings takes for one type, and ``[`~data.read`]`` plainly."""
    html = re.sub(r"<code>([^<]*[`*][^<]*)</code>", lambda m: f"<code>{re.sub('[`*]', '', m[1])}</code>", html)
    html = re.sub(r"<code>\[([A-Z]\w*[a-z])\]</code>", r"<code>\1</code>", html)
    html = re.sub(r"<code>~(?:\w+\.)*(\w+)</code>", r"<code>\1</code>", html)
    return re.sub(r"\[(<code>[^<]*</code>)\]", r"\1", html)


def on_post_build(config):
    """Copy pages as Markdown beside their HTML, and skills, and list both in llms.txt (see llmstxt.org)."""
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav:
        for title, target in section.items():
            pages = {title: target} if isinstance(target, str) else {k: v for page in target for k, v in page.items()}
            if not isinstance(target, str):
                lines += [f"## {title}", ""]
            for name, path in pages.items():
                lines.append(f"- [{name}]({path})")
                (site / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(docs / path, site / path)
            lines.append("")
    lines += ["## For coding agents", ""]
    for skill in sorted(docs.parent.glob("skills/*/SKILL.md")):
        path = skill.relative_to(docs.parent)
        lines.append(f"- [{skill.parent.name}]({path.as_posix()})")
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(skill, site / path)
    (site / "llms.txt").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
