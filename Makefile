# Two commands set a fresh machine up: each makes .venv and installs everything it needs into it.
# The first Python on the path that is recent enough; `make PYTHON=/path/to/python3.12 ...` takes another one.
IS_RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$name -c '$(IS_RECENT)' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
CODE := simcse_hf tests examples benchmarks model_cards reproduction tools
PACKAGE := $(VENV)/.package
INSTALLED := $(VENV)/.installed

OFFLINE := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
# A worker that crashes ends the suite: pytest-xdist waits for ever for the tests of one that it has replaced.
# Files are run in the order in which tests/conftest.py puts them.
SUITE := -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PYTEST := $(OFFLINE) $(BIN)/python $(SUITE)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# `make` alone lists the targets, each with the text after its `##`.
help:
	@sed -n 's/^\([a-z-]*\):.*  ## /\1:/p' $(MAKEFILE_LIST) | awk -F: '{printf "make %-14s %s\n", $$1, $$2}'

.PHONY: help quickstart test test-folder test-all test-versions coverage types suite quality docs clean

quickstart: $(PACKAGE)  ## train an unsupervised SimCSE model offline and show its dev Spearman before and after
	HF_HUB_OFFLINE=1 $(BIN)/simcse-hf train unsup
	@echo "\`source $(BIN)/activate\` puts simcse-hf on the path."

test: $(INSTALLED)  ## lint, format, types and the test suite
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(MAKE) --no-print-directory --jobs 2 types suite

types: $(INSTALLED)
	$(BIN)/mypy

suite: $(INSTALLED)
	$(PYTEST)

test-folder: $(INSTALLED)  ## lint, types and the tests of one folder (FOLDER=objectives)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(PYTEST) tests/$(FOLDER) $(addprefix tests/project/,layout/test_layout.py layout/test_docstrings.py documents/test_docs.py documents/test_doctests.py)

test-all: $(INSTALLED)  ## the test suite with the tests marked slow, which takes half an hour
	$(PYTEST) --run_slow

test-versions: $(foreach kind,plain suite,.venv-$(kind)-lowest-direct .venv-$(kind)-highest)  ## a plain install and the test suite, on the lowest and on the newest versions allowed
	for venv in $(filter .venv-plain%,$^); do $(OFFLINE) $$venv/bin/python tools/plain_install.py || exit 1; done
	for venv in $(filter .venv-suite%,$^); do $(OFFLINE) $$venv/bin/python $(SUITE) || exit 1; done

coverage: $(INSTALLED)  ## the test suite with branch coverage of the package
	$(PIP) coverage
	$(BIN)/coverage erase
	$(OFFLINE) $(BIN)/coverage run $(SUITE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --sort=cover

quality: $(INSTALLED)  ## format and fix
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(INSTALLED)  ## build the documentation site into site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

$(PACKAGE): pyproject.toml constraints.txt
	@$(if $(PYTHON),,echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." && exit 1)
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(INSTALLED): $(PACKAGE)
	$(PIP) --editable '.[test]'
	touch $@

# Versions that uv chooses: `lowest-direct` or `highest` within the ranges of pyproject.toml. The extra `test` lifts the
# lowest ones, so a plain install has an environment of its own.
UV_INSTALL = $(PYTHON) -m venv $@ && $@/bin/pip install --quiet --disable-pip-version-check uv && \
	$@/bin/uv pip install --quiet --python $@/bin/python --resolution $*
.venv-plain-%: pyproject.toml
	$(UV_INSTALL) --editable .
	touch $@
.venv-suite-%: pyproject.toml
	$(UV_INSTALL) --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-* outputs build dist site *.egg-info
