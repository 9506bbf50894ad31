r"""Train the runs of a study on a Ray cluster, each part on a machine that Ray finds free.

    pip install simcse-hf 'ray>=2.60'
    python examples/study_ray.py study.yaml --parts 8 --gpus 1

All machines must see the output folder and the texts under the same paths. A part that is interrupted goes on when the
command is called again. On a single machine, prefer `simcse-hf study`; on several without Ray, start
`simcse-hf study study.yaml --part 2/8` on each.
"""

import argparse

import ray

from simcse_hf import study


def main() -> None:
    """Read the command line, train the parts, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="YAML file of the study")
    parser.add_argument("--parts", type=int, default=2, help="how many runs may be trained at once")
    parser.add_argument("--cpus", type=float, default=1, help="of a part")
    parser.add_argument("--gpus", type=float, default=0, help="of a part")
    arguments = parser.parse_args()

    ray.init()
    train_part = ray.remote(num_cpus=arguments.cpus, num_gpus=arguments.gpus)(study)
    parts = [f"{number}/{arguments.parts}" for number in range(1, arguments.parts + 1)]
    ray.get([train_part.remote(arguments.file, part=part) for part in parts])
    print(study(arguments.file))  # everything is trained: this reads the scores and says the verdict


if __name__ == "__main__":
    main()
