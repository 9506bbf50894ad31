"""The command `simcse-hf analyze`."""

from pathlib import Path

from .common import add_output_options, command_parser, output_folder, report


def analyze_main(argv: list[str]) -> int:
    """Run `simcse-hf analyze`.

    Args:
        argv (`list[str]`): The words after `simcse-hf analyze`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the sources do not have different names.
    """
    parser = command_parser(
        "analyze",
        "Draw training runs and evaluated models as PNG, and write the numbers of the pictures as analysis.json. "
        "Needs the extra `plot`.",
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="output folder of a training run, or result file (.json) of `simcse-hf evaluate --geometry`",
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="names of the sources; default: from their paths")
    add_output_options(parser, "folder for analysis.json and the pictures")
    arguments = parser.parse_args(argv)
    paths = [Path(source) for source in arguments.sources]
    names = arguments.names
    if names is None:
        names = [path.parent.name if path.stem in ("", "results") else path.stem for path in paths]
    if len(set(names)) != len(paths):
        raise ValueError(f"--names must give {len(paths)} different names, one for each source")

    from ..publishing.analysis import analyze

    with output_folder(arguments, "analysis.json", arguments.sources) as folder:
        document = analyze(dict(zip(names, paths, strict=True)), folder)
    lines = [f"{arguments.output}/{name}.png" for name in document if name != "omitted"]
    lines += [f"{name} is not drawn: {reason}" for name, reason in document["omitted"].items()]
    report(arguments, document, "\n".join(lines))
    return 0
