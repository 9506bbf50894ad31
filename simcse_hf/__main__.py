"""`python -m simcse_hf`: the console script without its name."""

from .cli.main import main

raise SystemExit(main())
