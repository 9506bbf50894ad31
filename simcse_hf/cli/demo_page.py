"""The page of `simcse-hf demo`: search, comparison of sentences, a heat map, and the geometry of the embeddings."""

import base64
import csv
import io
import os
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, cast

from ..evaluation.geometry import alignment, uniformity
from ..search.sentences import Results, SentenceIndex

if TYPE_CHECKING:
    from ..evaluation import ScoredPairs

_MAX_TOP_K = 100  # end of the slider, unless the command line asks for more
_MAX_LINES = 40  # of the heat map
_MAX_CHARACTERS = 10_000  # of a text; a longer one takes seconds, and no encoder reads it to its end
_GEOMETRY_SAMPLE = 1000  # sentences of an index that uniformity is measured on
_POSITIVE_ABOVE = 4.0  # gold score above which a pair counts as positive (SimCSE paper, footnote 3)
_EXAMPLE_LINES = "A man is playing a guitar.\nA woman plays the violin.\nThe stock market fell today."
#: Events of one group run one at a time, because a fast tokenizer cannot be used by two threads at once.
_ONE_AT_A_TIME = {"concurrency_limit": 1, "concurrency_id": "model"}
_STYLE = """<style>
.side-by-side {display: flex; flex-wrap: wrap; gap: 1.5em} .side-by-side > div {flex: 1; min-width: 20em}
.results, .heat {width: 100%} .results td:last-child {width: 100%}
.heat td {text-align: center; min-width: 3.5em} .heat th {text-align: left; font-weight: normal; max-width: 22em}
</style>"""


def import_gradio() -> Any:
    """Import gradio with its reports to its authors switched off.

    Returns:
        `module`: The module `gradio`.

    Raises:
        ImportError: If gradio is not installed; the message names the extra.
    """
    # Read when gradio is imported and again when it serves; it also decides whether gradio looks for a newer version.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the demo needs gradio: pip install 'simcse-hf[demo]'") from error
    return gradio


def build_demo(
    indexes: Sequence[SentenceIndex],
    *,
    top_k: int = 5,
    threshold: float | None = None,
    pairs: "ScoredPairs | None" = None,
) -> Any:
    """Build the page without serving it.

    Args:
        indexes (`Sequence[SentenceIndex]`): One index, or several whose results stand side by side. Each is used with
            its own model.
        top_k (`int`, *optional*, defaults to `5`): Number of sentences that the page shows first.
        threshold (`float`, *optional*): Lowest cosine similarity that the page shows first. By default it shows all.
        pairs (`ScoredPairs`, *optional*): Pairs of sentences to measure alignment on.

    Returns:
        `gradio.Blocks`: The page. Its scores are those of `SentenceIndex.search` and `SimCSE.similarity`, rounded to
        four digits.

    Raises:
        ImportError: If gradio is not installed; the message names the extra.
    """
    gr = import_gradio()
    with gr.Blocks(title="Sentence search", analytics_enabled=False) as page:
        gr.HTML(_STYLE, padding=False)
        gr.Markdown("# Sentence search\n" + "<br>".join(map(_describe, indexes)))
        with gr.Tab("Search"):
            _add_search(gr, indexes, top_k, -1 if threshold is None else threshold)
        with gr.Tab("Compare", elem_id="compare-tab"):
            _add_comparison(gr, indexes)
        with gr.Tab("Heat map", elem_id="heat-tab"):
            _add_heat_map(gr, indexes)
        with gr.Tab("Geometry", elem_id="geometry-tab"):
            _add_geometry(gr, indexes, pairs)
    return page


def _name(index: SentenceIndex) -> str:
    return str(getattr(index.model, "name_or_path", None) or type(index.model).__name__).rstrip("/")


def _describe(index: SentenceIndex) -> str:
    pooler = getattr(index.model, "pooler_type", None)
    return (
        f"Model `{_name(index)}`{f', pooler `{pooler}`' if pooler else ''}; {len(index):,} sentences, embeddings of "
        f"{index.vectors.dim} dimensions, searched by `{index.backend}`."
    )


def _side_by_side(indexes: Sequence[SentenceIndex], blocks: Sequence[str]) -> str:
    """Lay out one block of markup per index, under the names of the models if there are several."""
    if len(indexes) == 1:
        return blocks[0]
    titled = [f"<div><h3>{escape(_name(i))}</h3>{block}</div>" for i, block in zip(indexes, blocks, strict=True)]
    return f'<div class="side-by-side">{"".join(titled)}</div>'


def _too_long(text: str) -> str | None:
    """Return the message for a text that the demo does not take."""
    if len(text) <= _MAX_CHARACTERS:
        return None
    return f"A text may have {_MAX_CHARACTERS:,} characters; this one has {len(text):,}."


# --- search ---------------------------------------------------------------------------------------------------------


def _add_search(gr: Any, indexes: Sequence[SentenceIndex], top_k: int, threshold: float) -> None:
    def search(query: str, top_k: int, threshold: float) -> tuple[str, str]:
        if not query.strip():
            return "", "Type a query first."
        if problem := _too_long(query):
            return "", problem
        blocks, messages, rows = [], [], []
        for index in indexes:
            best = cast(Results, index.search(query, top_k=int(top_k), threshold=None))
            results = [(sentence, score) for sentence, score in best if score >= threshold]
            blocks.append(_results_table(results))
            rows += [[_name(index), rank, score, sentence] for rank, (sentence, score) in enumerate(results, start=1)]
            if not results:
                messages.append(
                    f"No sentence has a cosine similarity of at least {threshold:.2f} with this query. The best one "
                    f"has {best[0][1]:.2f}: lower the threshold."
                )
        download = _download("results.csv", [["model", "rank", "cosine", "sentence"], *rows]) if rows else ""
        return _side_by_side(indexes, blocks) + download, "\n\n".join(messages)

    with gr.Row(equal_height=True):
        query = gr.Textbox(label="Query", placeholder="Type a sentence", autofocus=True, elem_id="query", scale=6)
        button = gr.Button("Search", variant="primary", elem_id="search", scale=1)
    with gr.Row():
        most = gr.Slider(1, max(_MAX_TOP_K, top_k), value=top_k, step=1, label="Number of sentences")
        least = gr.Slider(-1, 1, value=threshold, step=0.01, label="Lowest cosine similarity")
    gr.Examples(_example_sentences(indexes[0]), query, label="Examples: sentences of the index", elem_id="examples")
    message = gr.Markdown(elem_id="search-message")
    results = gr.HTML(elem_id="results")
    events = [button.click, query.submit]
    gr.on(events, search, [query, most, least], [results, message], api_name="search", **_ONE_AT_A_TIME)


def _example_sentences(index: SentenceIndex, count: int = 4) -> list[str]:
    """Return sentences from all over the index, in a fixed order, without repetitions."""
    step = max(1, len(index) // count)
    return list(dict.fromkeys(index[position] for position in range(0, len(index), step)))[:count]


def _results_table(results: Results) -> str:
    """Write the ranked sentences as a table. Markup in a sentence is shown as text."""
    rows = "".join(
        f"<tr><td>{rank}</td><td>{score:.4f}</td><td>{escape(sentence)}</td></tr>"
        for rank, (sentence, score) in enumerate(results, start=1)
    )
    head = "<tr><th>Rank</th><th>Cosine</th><th>Sentence</th></tr>"
    return (
        f'<div class="prose"><table class="results"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
        if results
        else ""
    )


def _download(filename: str, rows: Sequence[Sequence[Any]]) -> str:
    """Write a link that holds the rows as a CSV file, so that the server keeps no file of a visitor's texts."""
    stream = io.StringIO()
    csv.writer(stream).writerows(rows)
    content = base64.b64encode(stream.getvalue().encode()).decode()
    link = f'<a download="{filename}" href="data:text/csv;charset=utf-8;base64,{content}">Download as CSV</a>'
    return f'<p class="prose download">{link}</p>'


# --- two sentences, several sentences -------------------------------------------------------------------------------


def _add_comparison(gr: Any, indexes: Sequence[SentenceIndex]) -> None:
    def compare(first: str, second: str) -> str:
        for position, sentence in (("first", first), ("second", second)):
            if not sentence.strip():
                return f"Type both sentences: the {position} one is empty."
            if problem := _too_long(sentence):
                return problem
        scores = [index.model.similarity(first, second) for index in indexes]
        if len(indexes) == 1:
            return f"Cosine: {scores[0]:.4f}"
        return "\n\n".join(f"`{_name(index)}`: {score:.4f}" for index, score in zip(indexes, scores, strict=True))

    with gr.Row():
        first = gr.Textbox(label="First sentence", elem_id="first")
        second = gr.Textbox(label="Second sentence", elem_id="second")
    lines = _EXAMPLE_LINES.split("\n")
    gr.Examples([[lines[0], lines[1]], [lines[0], lines[2]]], [first, second], label="Examples")
    button = gr.Button("Compare", variant="primary", elem_id="compare")
    cosine = gr.Markdown(elem_id="cosine")
    events = [button.click, first.submit, second.submit]
    gr.on(events, compare, [first, second], cosine, api_name="compare", **_ONE_AT_A_TIME)


def _add_heat_map(gr: Any, indexes: Sequence[SentenceIndex]) -> None:
    def draw(text: str) -> tuple[str, str]:
        sentences = [line.strip() for line in text.splitlines() if line.strip()]
        if not 2 <= len(sentences) <= _MAX_LINES:
            return "", f"Type 2 to {_MAX_LINES} sentences, one per line; there are {len(sentences)}."
        if problem := _too_long(max(sentences, key=len)):
            return "", problem
        matrices = [index.model.similarity(sentences, sentences).tolist() for index in indexes]
        rows = [
            [_name(index), sentence, *(f"{score:.6f}" for score in row)]
            for index, matrix in zip(indexes, matrices, strict=True)
            for sentence, row in zip(sentences, matrix, strict=True)
        ]
        download = _download("similarities.csv", [["model", "sentence", *sentences], *rows])
        return _side_by_side(indexes, [_heat_table(sentences, matrix) for matrix in matrices]) + download, ""

    text = gr.Textbox(label="Sentences, one per line", lines=6, elem_id="lines")
    gr.Examples([_EXAMPLE_LINES, "\n".join(_example_sentences(indexes[0], 8))], text, label="Examples")
    button = gr.Button("Compare all", variant="primary", elem_id="draw")
    message = gr.Markdown(elem_id="heat-message")
    heat_map = gr.HTML(elem_id="heat")
    button.click(draw, text, [heat_map, message], api_name="similarities", **_ONE_AT_A_TIME)


def _heat_table(sentences: Sequence[str], matrix: Sequence[Sequence[float]]) -> str:
    """Write a matrix of cosines as a table whose cells are the more orange, the more similar two sentences are."""

    def cell(score: float) -> str:
        style = f"background: rgba(234, 88, 12, {max(score, 0):.2f}); color: {'white' if score > 0.6 else 'inherit'}"
        return f'<td style="{style}">{score:.2f}</td>'

    head = "<tr><th></th>" + "".join(f"<td>{number}</td>" for number in range(1, len(sentences) + 1)) + "</tr>"
    rows = "".join(
        f"<tr><th>{number}. {escape(sentence)}</th>{''.join(map(cell, row))}</tr>"
        for number, (sentence, row) in enumerate(zip(sentences, matrix, strict=True), start=1)
    )
    return f'<table class="heat"><thead>{head}</thead><tbody>{rows}</tbody></table>'


# --- geometry -------------------------------------------------------------------------------------------------------


def _add_geometry(gr: Any, indexes: Sequence[SentenceIndex], pairs: "ScoredPairs | None") -> None:
    def measure() -> str:
        rows = []
        for index in indexes:
            sample = _example_sentences(index, _GEOMETRY_SAMPLE)
            if len(sample) < 2:
                return "Uniformity needs at least two different sentences in the index."
            spread = uniformity(index.model.encode(sample))
            closeness = "not measured" if pairs is None else _alignment(index, pairs)
            rows.append([_name(index), closeness, f"{spread:.4f}", f"{len(sample):,}"])
        head = ["Model", "Alignment", "Uniformity", "Sentences"]
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    gr.Markdown(
        "**Uniformity** says how evenly the embeddings of the index spread over the sphere, and **alignment** how "
        "close sentences of the same meaning are (Wang and Isola, 2020). Lower is better for both; a good model is "
        "low in both.\n\n"
        + (
            "Start the demo with `--pairs FILE` (scored pairs, such as STS-B) to measure alignment too."
            if pairs is None
            else f"Alignment is measured on the pairs of the file that are scored above {_POSITIVE_ABOVE:g}."
        )
    )
    button = gr.Button("Measure", variant="primary", elem_id="measure")
    table = gr.Markdown(elem_id="geometry")
    button.click(measure, None, table, api_name="geometry", **_ONE_AT_A_TIME)


def _alignment(index: SentenceIndex, pairs: "ScoredPairs") -> str:
    rows = [
        (first, second)
        for first, second, score in zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
        if score > _POSITIVE_ABOVE
    ]
    if not rows:
        return f"no pair above {_POSITIVE_ABOVE:g}"
    first, second = (index.model.encode(list(side)) for side in zip(*rows, strict=True))
    return f"{alignment(first, second):.4f} ({len(rows)} pairs)"
