# The two commands of the README are `make compare` and `make test`. The first call of either makes .venv.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help install compare test test-full test-slurm test-browser bench lint clean

help:
	@echo "make compare      train all six families on a CPU, print the table, write the report"
	@echo "make test         run the tests"
	@echo "make test-full    run the tests that do all of what the others do a choice of: ten minutes"
	@echo "make test-slurm   run jobs on a SLURM started on this machine; needs root, see docs/how-to/slurm.md"
	@echo "make test-browser open the report in Chromium, where it is installed"
	@echo "make bench        measure what has a goal beside other libraries: twenty minutes, nothing else running"
	@echo "make lint         ruff and mypy"
	@echo "make clean        remove .venv and caches; runs and prepared data stay"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "archbench needs Python 3.11 or later, this is %d.%d: make PYTHON=python3.11 ..." % v[:2])'
	@echo "Installing into .venv (two minutes, once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

compare: $(INSTALLED)
	@$(BIN)/python -m experiments.plan study=compare
	@$(BIN)/python -m experiments.train study=compare
	@$(BIN)/python -m analysis.compare study=compare

test: $(INSTALLED)
	@$(BIN)/python -m pytest --numprocesses $(JOBS)

test-full: $(INSTALLED)
	@$(BIN)/python -m pytest -m full --numprocesses $(JOBS)

test-slurm: $(INSTALLED)
	@$(BIN)/python -m pytest -m slurm -rs tests/slurm

test-browser: $(INSTALLED)
	@$(BIN)/python -m pytest -m browser -rs tests/analysis

bench: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	@$(BIN)/python benchmarks/goals.py

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache *.egg-info
