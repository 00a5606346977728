# Everything a developer calls. Each target does its own set-up; a second run only does what changed.
#   PYTHON=python3.12 make setup     another Python (3.10 or newer)
#   TORCH= make setup                without PyTorch: tests that need it are skipped
#   JOBS=8 make build                compile jobs at once (default: half of the cores)
#   WERROR=ON make build             warnings of the C++ compiler are errors, as in .ci/run
#   PIP_FLAGS='...' make setup       options for every pip install, as --find-links for a local folder of wheels
PYTHON ?= python3
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$(( (n + 1) / 2 )))
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD_REQUIRES := $(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml | tr ',' ' ')
EXAMPLES := $(shell sed -n 's/^examples = \[\(.*\)\]$$/\1/p' pyproject.toml | tr ',' ' ')
RAY := $(shell sed -n 's/^ray = \["\(.*\)"\]$$/\1/p' pyproject.toml)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup build test demo examples hello lint format sanitize fuzz bench soak faults torch-suite torch-mixed clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

setup: $(VENV)/.editable  ## .venv with everything a developer needs, and the package in it

# The stamps, in order: a checked machine with a fresh environment, PyTorch, build tools, the package with [dev].
$(VENV)/.created:
	PYTHON=$(PYTHON) scripts/preflight.sh
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.torch: | $(VENV)/.created
	$(if $(TORCH),$(PIP) install $(PIP_FLAGS) $(TORCH),@echo "without PyTorch, as TORCH= asks")
	touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.created
	$(PIP) install -q $(PIP_FLAGS) $(BUILD_REQUIRES)
	cmake --version >/dev/null 2>&1 || $(PIP) install -q $(PIP_FLAGS) cmake
	ninja --version >/dev/null 2>&1 || $(PIP) install -q $(PIP_FLAGS) ninja
	touch $@

$(VENV)/.editable: pyproject.toml $(VENV)/.torch $(VENV)/.tools
	PYTHON=$(BIN)/python scripts/build.sh $(PIP_FLAGS) -e '.[dev]'
	touch $@

# What the examples need is wished for: where it cannot be had, their tests are skipped and say so.
$(VENV)/.examples: pyproject.toml $(VENV)/.editable
	$(if $(TORCH),-$(PIP) install -q $(PIP_FLAGS) $(EXAMPLES),@echo "without PyTorch no examples")
	touch $@

build: setup  ## compile what changed and put it into .venv
	@PYTHON=$(BIN)/python scripts/build.sh --no-deps --no-index -e .

test: build lint $(VENV)/.examples  ## linters, types, all tests
	$(BIN)/python -m pytest -q

demo: build  ## train a small GPT on Gloo, then on tailcut, and compare (2 to 3 minutes)
	$(BIN)/python examples/demo.py

examples: build $(VENV)/.examples  ## every example for real, Ray too (minutes)
	$(PIP) install -q $(PIP_FLAGS) '$(RAY)'
	TAILCUT_TEST_RAY=1 $(BIN)/python -m pytest -q tests/examples

hello: build  ## a first AllReduce on four ranks of this machine, values checked (seconds)
	$(BIN)/python examples/first_allreduce.py

lint: setup  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

format: setup  ## let ruff put the Python in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sanitize: setup  ## the engine's tests and random scenarios under address and undefined-behaviour sanitizers
	scripts/sanitize.sh

fuzz: build  ## random scenarios in the virtual network; prints how to see a failure again
	$(BIN)/python -m fuzz.campaign

bench: build  ## figure 1, beside Gloo and three MPIs over loopback (10 minutes; figures 2 and 7: benchmarks/)
	$(BIN)/python -m tailcut.bench.baselines
	$(BIN)/python benchmarks/loopback.py

soak: build  ## figure 3: 10,000 random operations with 1 % loss (minutes; needs root)
	$(BIN)/python benchmarks/soak.py

faults: build  ## figure 4: killed and stopped ranks (7 minutes)
	$(BIN)/python benchmarks/faults.py

torch-suite: build  ## PyTorch's own distributed tests on Gloo and on tailcut, compared (10 minutes)
	$(BIN)/python benchmarks/torch_suite.py

torch-mixed: build  ## 200 iterations of mixed collectives on 4 ranks, 20 times (10 minutes)
	$(BIN)/python benchmarks/torch_mixed.py

clean:  ## remove builds and caches (the environment stays: rm -r .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
