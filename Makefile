# Everything a developer or CI runs. `make` alone lists the targets.
PYTHON ?= python3
BIN := .venv/bin
BENCHMARKS := $(basename $(notdir $(wildcard benchmarks/[a-z]*.py)))
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
APT := apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20
# PyPI's torchvision is linked against CUDA: beside a CPU-only torch this helps it to import.
TORCHVISION := src/obc/models/torchvision_operators.py
# One torch thread per worker: two workers already fill two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help setup browser test test-all test-slice check format bench demo docs dist clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: .venv/.installed  ## make .venv with everything the other targets need

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "installing into .venv: takes a minute or two"
	$(PIP_INSTALL) -e '.[dev,docs,hf,demo,onnx,detection]'
	$(PIP_INSTALL) -e '.[vision]' || echo "no torchvision here: the tests that want it are skipped"
	@$(BIN)/python -c "import torchvision" 2>/dev/null || $(BIN)/python $(TORCHVISION)
	$(BIN)/obc doctor
	@touch $@

browser:  ## get Chromium for the tests of the report, where that is allowed; never fails
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& timeout 300 sh -c '$(APT) update && $(APT) install -y --no-install-recommends chromium' \
		>/dev/null; } || echo "no Chromium here: the report is not looked at in a browser"

test: setup  ## run the tests, without the slow ones
	$(PYTEST) -m "not slow and not network"

test-all: setup  ## run every test, with 500 examples for each property
	HYPOTHESIS_PROFILE=thorough $(PYTEST)

# Another twelfth each time; -x, so that what fails before the time is over is told.
test-slice: setup  ## run a twelfth of the slow tests for at most 25 minutes, another one each commit
	timeout 1500 env $(PYTEST) -x -m "slow and not network" --slice $$(git rev-list --count HEAD)/12 \
		|| { [ $$? = 124 ] && echo "25 minutes are over: the rest of this slice did not run"; }

check: setup  ## check format, lint, types and the import contract
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup  ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## run every benchmark: tables here, JSON in benchmarks/results/
	@mkdir -p benchmarks/results
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done

demo: setup  ## prune a ResNet and show what came of it: a table here, runs/demo/report.html
	$(BIN)/obc demo

docs: setup  ## build the site into docs/_build/html: the gallery runs, a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build/html

dist: setup  ## build wheel and sdist into dist/; .ci/smoke FILE tries one in an empty environment
	rm -rf dist
	$(BIN)/python -m build

clean:  ## remove .venv and every cache
	rm -rf .venv dist docs/_build docs/gallery .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
