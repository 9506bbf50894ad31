"""The names, files and sizes of the tasks."""

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # the paper's seven; SST5 must be named
TASK_SETS = ("sts", "transfer", "full")
ALL_TASKS = STS_TASKS + TRANSFER_TASKS + ("SST5",)
MODES = ("test", "dev", "fasttest")

STS_SUBSETS = {  # in SentEval's order; STS13 lacks SMT, whose licence forbids redistribution
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
STS_SPLITS = {  # files of the tasks that have splits, relative to SentEval's `downstream` folder
    "STSBenchmark": {split: f"STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")},
    "SICKRelatedness": {
        "train": "SICK/SICK_train.txt",
        "dev": "SICK/SICK_trial.txt",
        "test": "SICK/SICK_test_annotated.txt",
    },
}
STS_PAIRS = {  # scored pairs in SentEval's archive; another number means another data set
    "STS12": {"STS12": 3108},
    "STS13": {"STS13": 1500},
    "STS14": {"STS14": 3750},
    "STS15": {"STS15": 3000},
    "STS16": {"STS16": 1186},
    "STSBenchmark": {"train": 5749, "dev": 1500, "test": 1379},
    "SICKRelatedness": {"train": 4500, "dev": 500, "test": 4927},
}
TRANSFER_EXAMPLES = {
    "MR": {"train": 10662},
    "CR": {"train": 3775},
    "SUBJ": {"train": 10000},
    "MPQA": {"train": 10606},
    "SST2": {"train": 67349, "dev": 872, "test": 1821},
    "SST5": {"train": 8544, "dev": 1101, "test": 2210},
    "TREC": {"train": 5452, "test": 500},
    "MRPC": {"train": 4076, "test": 1725},
}


class TaskNotFound(Exception):
    """The data of a task does not exist; the message says where it was looked for."""


def headline_split(mode: str) -> str:
    """Return the split whose figure a mode reports: `dev` in mode `dev`, otherwise `test`."""
    return "dev" if mode == "dev" else "test"


def default_tasks(task_set: str, mode: str) -> tuple[str, ...]:
    """Return the tasks of `sts`, `transfer` or `full`; in mode `dev`, only those that have a dev figure."""
    sts = tuple(task for task in STS_TASKS if mode != "dev" or task not in STS_SUBSETS)
    return {"sts": sts, "transfer": TRANSFER_TASKS, "full": sts + TRANSFER_TASKS}[task_set]


def check_tasks(tasks: list[str] | tuple[str, ...], mode: str) -> None:
    """Raise a `ValueError` if a task is unknown or repeated, or if the mode is unknown."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown. Use one of {', '.join(MODES)}.")
    unknown = [task for task in tasks if task not in ALL_TASKS]
    if unknown:
        raise ValueError(f"unknown task {', '.join(unknown)}. Use names out of {', '.join(ALL_TASKS)}.")
    if len(set(tasks)) != len(tasks):
        raise ValueError(f"a task is named twice in {', '.join(tasks)}. Name each task once.")
