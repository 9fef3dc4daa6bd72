# The commands of the README are `make demo`, `make compare` and `make test`. The first call of any makes .venv.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
INSTALLED := .venv/.installed

# Tests start hundreds of processes: let Python keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Whole files go to a process, the longest first: tests/tiers.py.
PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help install demo compare laptop track test test-all test-slow validate test-slurm test-gpu test-kernels test-browser test-dataset test-dependencies durations bench lint pictures docs clean version release release-check

help:
	@echo "make demo              train two models on one task with three seeds, and print a verdict"
	@echo "make compare           train three models on text at growing compute, print the answer, write the report"
	@echo "make laptop            the longer comparison: more models on text, and recall, infilling and sequence pairs"
	@echo "make track             run a track: TRACK=cpu, and WORDS=workloads=parity for a part of it (docs/tracks/)"
	@echo "make test              run the fast tests: a choice of the cases of every test"
	@echo "make test-all          run all tests"
	@echo "make test-slow         run all but the fast tests; WORDS=--seconds=1800 begins none after half an hour"
	@echo "make test-slurm        run jobs on a SLURM started on this machine; needs root, see docs/how-to/slurm.md"
	@echo "make test-gpu          run the tests that need a CUDA device, see docs/performance/gpu.md"
	@echo "make test-kernels      run the Triton kernels of mamba-ssm and flash-linear-attention in Triton's interpreter"
	@echo "make test-browser      open the report and the board in Chromium, where it is installed"
	@echo "make test-dataset      validate the metadata of the results with mlcroissant"
	@echo "make test-dependencies test the wheel with RESOLUTION=lowest-direct or highest, and VERSION=3.13 of Python"
	@echo "make durations         run all tests and record how long each takes; nothing else running"
	@echo "make validate          validate the submissions that were added or changed since BASE=COMMIT"
	@echo "make bench             measure what has a goal beside other libraries: half an hour, nothing else running"
	@echo "make lint              ruff, mypy and the import contracts"
	@echo "make pictures          renew the pictures of pages and notebooks; needs Chromium"
	@echo "make docs              build the documentation into docs/_build/html; warnings are errors"
	@echo "make version           write VERSION=1.0.0 into the project files"
	@echo "make release-check     check that the committed version can be released, and build it into dist/"
	@echo "make release           the same, then tag the commit"
	@echo "make clean             remove .venv and caches; runs and prepared data stay"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "archbench needs Python 3.11 or later, this is %d.%d: make PYTHON=python3.11 ..." % v[:2])'
	@echo "Installing into .venv (two minutes, once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/archbench train study=demo $(WORDS)

compare: $(INSTALLED)
	@$(BIN)/archbench train study=main $(WORDS)
	@$(BIN)/archbench compare study=main $(filter runs=%,$(WORDS))

laptop: $(INSTALLED)
	@$(BIN)/archbench train study=laptop $(WORDS)
	@$(BIN)/archbench train study=compare $(WORDS)
	@$(BIN)/archbench train study=infilling $(WORDS)
	@$(BIN)/archbench train study=sequence_pairs $(WORDS)
	@$(BIN)/archbench compare study=compare $(filter runs=%,$(WORDS))
	@$(BIN)/archbench compare study=infilling $(filter runs=%,$(WORDS))
	@$(BIN)/archbench compare study=sequence_pairs $(filter runs=%,$(WORDS))
	@$(BIN)/archbench compare study=laptop $(filter runs=%,$(WORDS))

track: $(INSTALLED)
	@$(BIN)/archbench track $(TRACK) $(WORDS)

test: $(INSTALLED)
	@$(PYTEST) --tier fast $(PARALLEL)

test-all: $(INSTALLED)
	@$(PYTEST) --tier all $(PARALLEL) $(WORDS)

test-slow: $(INSTALLED)
	@$(PYTEST) --tier slow $(PARALLEL) $(WORDS)

test-slurm: $(INSTALLED)
	@$(PYTEST) --tier all -m slurm tests/slurm

test-gpu: $(INSTALLED)
	@$(PYTEST) --tier all -m gpu tests/gpu

INSTALL_DOCS := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
CROISSANT := .croissant/.installed

# In a folder of its own: with its dependencies it would bring type stubs of pandas, which mypy would use.
$(CROISSANT): tests/analysis/croissant_requirements.txt | $(INSTALLED)
	@rm -rf .croissant
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .croissant -r tests/analysis/croissant_requirements.txt
	@touch $@

test-dataset: $(CROISSANT)
	@PYTHONPATH=.croissant $(PYTEST) --tier all tests/analysis/test_dataset.py

KERNELS := .kernels/.installed
DOWNLOAD := $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all:

# No compiled part is built: the interpreter needs the Python sources only.
$(KERNELS): tests/kernels/requirements.txt tests/kernels/sources.txt | $(INSTALLED)
	@echo "Unpacking Triton and the sources of kernels into .kernels (a gigabyte, once) ..."
	@rm -rf .kernels
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .kernels/packages -r tests/kernels/requirements.txt
	@while read -r source; do MAMBA_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE $(DOWNLOAD) --dest .kernels "$$source" || exit 1; done < tests/kernels/sources.txt
	@for archive in .kernels/*.tar.gz; do tar --extract --gzip --file "$$archive" --directory .kernels || exit 1; done
	@touch $@

test-kernels: $(KERNELS)
	@$(PYTEST) --tier all -m kernels $(PARALLEL) tests/kernels
	@PYTHONPATH=.kernels/mamba_ssm-2.3.1:.kernels/packages $(PYTEST) --tier all -k "code_of_the_authors" tests/architectures/layers/ssm

test-browser: $(INSTALLED)
	@$(INSTALL_DOCS)
	@$(PYTEST) --tier all -m browser tests/analysis tests/docs

RESOLUTION ?= lowest-direct

# It installs PyTorch for CUDA; UV_TORCH_BACKEND=cpu selects another one.
test-dependencies: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.dependencies --resolution $(RESOLUTION) $(if $(VERSION),--python $(VERSION))

SUBMISSIONS = $$(git diff --name-only --diff-filter=d $(BASE) -- 'docs/submissions/*/*' | cut -d / -f 1-3 | sort -u)

validate: $(INSTALLED)
	@failed=0; for folder in $(SUBMISSIONS); do $(BIN)/archbench validate $$folder || failed=1; done; exit $$failed

durations: $(INSTALLED)
	@$(PYTEST) --tier all --record-durations $(PARALLEL)

bench: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	@$(BIN)/python benchmarks/goals.py

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

pictures: $(INSTALLED)
	@$(BIN)/python -m tests.docs.pictures
	@$(BIN)/python -m tests.docs.notebooks

docs: $(INSTALLED)
	@$(INSTALL_DOCS)
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

version: $(INSTALLED)
	@$(BIN)/python -m tests.release --version $(VERSION)
	@$(MAKE) --no-print-directory install
	@$(BIN)/archbench export dataset

release-check: $(INSTALLED)
	@$(BIN)/python -m tests.release

release: $(INSTALLED)
	@$(BIN)/python -m tests.release --tag

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache *.egg-info dist
