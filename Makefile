# make demo    watch it work            make test    what CI runs
# make setup   only install             make check   format, lint, types
# make bench   measure what docs/performance.md says; about a quarter of an hour
# make test-browser, make test-ray   parts of make test that need more: Chromium, where there is one; a Ray cluster

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLUSTER := tests/sweeps/test_ray_cluster.py

.PHONY: setup demo bench test test-ray test-browser check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	@$(BIN)/gescl demo

bench: setup
	@for name in loop tricks threads overhead importance prox growth peers; do \
		echo "$$name"; $(BIN)/python bench/$$name.py || exit 1; done
	@$(BIN)/python bench/document.py

check: setup
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

test: check
	@$(BIN)/pytest --ignore $(CLUSTER) --numprocesses auto --cov --cov-report term:skip-covered --cov-fail-under 90
	@$(MAKE) --no-print-directory test-ray test-browser

RAY := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ray]"

test-ray: setup
	@if $(RAY); then $(BIN)/pytest $(CLUSTER); else echo "test-ray: skipped, Ray cannot be installed here"; fi

CHROMIUM := $(shell for name in chromium chromium-browser google-chrome; do command -v $$name && break; done)

test-browser: setup
ifeq ($(CHROMIUM),)
	@echo "test-browser: skipped, chromium not found (on Debian: apt-get install chromium)"
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[browser]"
	@GESCL_CHROMIUM=$(CHROMIUM) $(BIN)/pytest tests/browser
endif

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .cache demo
