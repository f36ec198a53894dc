# The course's commands. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)  # in a container

.DEFAULT_GOAL := help
.PHONY: help venv lab test lint bench data gallery

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

venv: $(INSTALLED)  ## make .venv and install the course into it

$(INSTALLED): requirements.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "The course needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -c constraints.txt
	touch $@

lab: $(INSTALLED)  ## open JupyterLab on the first lesson
	$(BIN)/jupyter lab $(AS_ROOT) notebooks/00_start_here.ipynb

lint: $(INSTALLED)  ## check style and formatting, notebooks too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint  ## lint, unit and property tests, every notebook from top to bottom
	$(BIN)/pytest tests
	$(BIN)/pytest --nbval-lax --nbval-cell-timeout=300 -p no:cacheprovider notebooks

bench: $(INSTALLED)  ## compare speed and learning with TransformerLens and plain torch
	$(BIN)/python -m bench

data: $(INSTALLED)  ## train the models in data/ again (those that are missing or stale)
	$(BIN)/python data/build.py

gallery: $(INSTALLED)  ## draw every picture and take its screenshot (needs Chromium) into build/gallery
	$(BIN)/python -m tests.gallery
