"""The command `simcse-hf postprocess`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .common import (
    add_batch_options,
    add_model_options,
    add_output_options,
    add_text_options,
    command_parser,
    load_encoder,
    output_folder,
    positive_int,
    report,
)

METHODS = ("whitening", "flow")
#: The arguments of `fit_whitening` and `fit_flow` as options of the command.
_OPTIONS: dict[str, dict[str, tuple[Any, str]]] = {
    "whitening": {"dim": (positive_int, "number of leading directions to keep; default: all")},
    "flow": {
        "blocks": (positive_int, "number of blocks; default: 3"),
        "width": (positive_int, "hidden units of a coupling network; default: 256"),
        "epochs": (positive_int, "default: 5"),
        "batch_size": (positive_int, "default: 256"),
        "learning_rate": (float, "learning rate at the first step; default: 1e-3"),
        "seed": (int, "default: 42"),
    },
}
_TRANSFORM_FILE = "postprocessing/postprocessing.json"


def postprocess_main(argv: list[str]) -> int:
    """Run `simcse-hf postprocess`.

    Args:
        argv (`list[str]`): The words after `simcse-hf postprocess`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the transform would stand in the model's own folder, whose files name another pooler.
    """
    parser = command_parser(
        "postprocess",
        "Fit a transform of a model's sentence embeddings on unlabelled texts, and save it beside the model. A "
        "transform that the model already has is not applied while fitting.",
    )
    parser.add_argument("action", choices=("fit",), help="fit a transform")
    parser.add_argument("--method", required=True, choices=METHODS, help="kind of transform")
    add_model_options(parser, runtime=False, postprocess=False)
    add_text_options(parser, several_columns=True)
    add_batch_options(parser)
    for method, options in _OPTIONS.items():
        group = parser.add_argument_group(method)
        for name, (kind, help) in options.items():
            group.add_argument(f"--{name}", type=kind, help=help)
    add_output_options(parser, "folder for the model with its transform; that of --model to add the transform there")
    arguments = parser.parse_args(argv)
    settings = {}
    for method, options in _OPTIONS.items():
        for name in options:
            value = getattr(arguments, name)
            if value is None:
                continue
            if method != arguments.method:
                raise ValueError(f"--{name}: not an option of --method {arguments.method}")
            settings[name] = value
    output = Path(arguments.output).expanduser()
    in_place = output.exists() and Path(arguments.model).exists() and output.samefile(arguments.model)
    if in_place and (output / _TRANSFORM_FILE).exists() and not arguments.overwrite:
        raise ValueError(f"--output {output} has a transform: replace it with --overwrite, or name another folder")
    target: Any = nullcontext(output)
    if not in_place:
        target = output_folder(arguments, _TRANSFORM_FILE, [arguments.model])

    from ..inference.simcse import SimCSE
    from ..postprocessing.transform import MODULES, save_transform

    with target as folder:
        model = load_encoder(arguments.model, arguments, postprocess=False)
        # sentence-transformers' files there describe the checkpoint's own pooler, and would be wrong for another one
        if in_place and (output / MODULES).exists():
            saved = SimCSE(output, device="cpu", postprocess=False).pooler_type
            if saved != model.pooler_type:
                raise ValueError(
                    f"{output} names pooler {saved!r} in its files, and the transform is for {model.pooler_type!r}: "
                    "name another --output."
                )
        fit = model.fit_postprocessing(
            arguments.method,
            arguments.input,
            columns=arguments.column,
            token_budget=arguments.token_budget,
            show_progress_bar=not arguments.quiet,
            **settings,
        )
        transform = model.postprocessing
        assert transform is not None
        if in_place:
            save_transform(folder, transform, fit)
        else:
            model.save_pretrained(folder)
    text = (
        f"{output}: {transform.method} of pooler {fit.pooler!r}, {transform.input_dim} to {transform.output_dim} "
        f"dimensions, fitted on {fit.sentences} sentences"
    )
    if fit.log_likelihood is not None:
        values = " ".join(f"{value:.3f}" for value in fit.log_likelihood)
        text += f"\nlog-likelihood per dimension after each epoch, in nats: {values}"
    document = {
        "output": output,
        "method": transform.method,
        "pooler_type": fit.pooler,
        "input_dim": transform.input_dim,
        "output_dim": transform.output_dim,
        "sentences": fit.sentences,
        "log_likelihood": fit.log_likelihood,
    }
    report(arguments, document, text)
    return 0
