"""Run the console script as a module: `python -m simcse_hf`, or `accelerate launch -m simcse_hf train ...`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "simcse-hf"  # which results.json names as the program
    sys.exit(main())
