"""What `simcse-hf adapt` decides on two domains, from two starting encoders, within a budget.

The corpus is the text of the training part of a domain, without labels. The tasks are made of its test part, of which
`adapt` sees one half in its search and judges on the other. An adaptation that was killed goes on.
"""

import argparse

from simcse_hf.training.adaptation.adaptation import AdaptationSettings, adapt

from ..harness import Report, markdown
from .domains import DOMAINS, POOLER, STARTS, write_tasks
from .workbench import Workbench

#: What the result says about paths of this machine, or repeats.
LEFT_OUT = ("arguments", "neighbours")


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    runs = report.results.setdefault("runs", {})
    for start in STARTS:
        for domain, kinds in DOMAINS.items():
            name = f"{domain}, {start}, {options.budget:g} minutes"
            if name in runs or (options.only and not any(word in name for word in options.only)):
                continue
            table = bench.work_dir / f"{domain}.csv"
            write_tasks(bench, domain, kinds)
            corpus = bench.work_dir / f"{domain}-train.csv"
            bench.texts(domain).to_csv(corpus, index=False)
            settings = AdaptationSettings(
                corpus=str(corpus),
                model=str(bench.encoder(start)),
                output=str(bench.work_dir / name.replace(", ", "-").replace(" ", "-")),
                budget=options.budget,
                seeds=len(options.seeds),
                tasks=tuple((kind, str(table)) for kind in kinds),
                pooler_type=POOLER,
                bf16=bench.bf16,
            )
            result = adapt(settings)
            runs[name] = {key: value for key, value in result.items() if key not in LEFT_OUT}
            report.save()


def table(results: dict) -> str:
    """Format the verdicts, and the dev figures of everything that each search tried."""
    runs = results["runs"]
    header = ["domain, start, budget", "verdict", "before", "after", "chosen", "seeds", "minutes"]
    rows = [
        [
            name,
            run["summary"],
            f"{run['before']:.2f}",
            f"{run['after']:.2f}",
            f"{run['chosen']['name']} ({run['chosen']['variant']})",
            len(run["seeds"]),
            f"{run['seconds'] / 60:.1f}",
        ]
        for name, run in runs.items()
    ]
    tables = [markdown(header, rows)]
    for name, run in runs.items():
        tried = [
            [trial["round"], trial["name"], trial["variant"], *(f"{value:.2f}" for value in trial["dev"].values())]
            for trial in run["plan"]
            if trial["dev"]
        ]
        tables.append(f"{name}\n\n" + markdown(["round", "method", "variant", *run["plan"][0]["dev"]], tried))
    return "\n\n".join(tables)
