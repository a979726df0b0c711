# make demo    watch it work            make test    what CI runs
# make setup   only install             make check   format, lint, types, layers
# make docs    the documentation as a site, in site/; any warning is an error
# make notebooks   execute the notebooks and store what they print and draw
# make dist    wheel and sdist, tried in an empty environment
# make bench   measure what docs/performance.md says; about half an hour
# make audit   known weaknesses of the pinned dependencies; needs a network
# make torture kill it, fill its disk, damage its files, hand it rubbish; an hour, TORTURE="--minutes 10" for less
# make mutants which mistakes in methods and mathematics the tests would miss; an hour or two, resumable
# make test-ray, make test-vision, make test-browser   the parts of make test that need more: a Ray cluster,
#              torchvision with timm and Avalanche, Chromium (skipped without)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
CLUSTER := tests/sweeps/test_ray_cluster.py
BROWSER := tests/browser
VISION := tests/vision
CHROMIUM := $(shell for name in chromium chromium-browser google-chrome; do command -v $$name && break; done)

.PHONY: setup demo dist docs notebooks bench torture test test-ray test-vision test-browser mutants audit check format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gescl needs Python 3.11 or later, as in: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV) (once; a few minutes)"
	@$(INSTALL) ".[dev]"
	@touch $@

# An extra that only some tests need.
$(STAMP)-%: $(STAMP)
	@echo "installing the extra $* into $(VENV) (once)"
	@$(INSTALL) ".[$*]"
	@touch $@

demo: setup
	@$(BIN)/gescl demo

# The theme's authors announce their next program on every build; that is no warning about our pages.
docs: $(STAMP)-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "written to site/index.html"

notebooks: setup
	@$(BIN)/python docs/site/notebooks.py

bench: setup
	@for name in whole streams half_free inference loop operations tricks threads overhead checkpoints importance prox growth \
		peers; do echo "$$name"; $(BIN)/python bench/$$name.py || exit 1; done
	@$(BIN)/python bench/whole.py --epochs 15
	@$(BIN)/python bench/document.py

# Wheel and sdist, and a demonstration by the wheel where nothing but the wheel is installed.
CLEAN := $(CURDIR)/.cache/clean
dist: setup
	@rm -rf dist $(CLEAN)
	@$(BIN)/python -m build --no-isolation --outdir dist . | tail -1
	@$(PYTHON) -m venv $(CLEAN)/venv
	@$(CLEAN)/venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	@cd $(CLEAN) && venv/bin/gescl --version && venv/bin/python -m gescl --version && venv/bin/gescl demo
	@$(CLEAN)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.tar.gz
	@cd $(CLEAN) && venv/bin/gescl --version && ls -l $(CURDIR)/dist

check: setup
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@found=$$($(BIN)/lint-imports --cache-dir .cache/import-linter) || { echo "$$found"; exit 1; }

# The tests that anyone can run come last, so that the last lines printed name what was skipped, and why.
test: check docs test-ray test-vision $(if $(CHROMIUM),test-browser)
	@$(BIN)/pytest -rs --ignore $(CLUSTER) --ignore $(VISION) $(if $(CHROMIUM),--ignore $(BROWSER)) \
		--numprocesses auto --cov --cov-report term:skip-covered --cov-fail-under 90

test-ray: $(STAMP)-ray
	@$(BIN)/pytest $(CLUSTER)

# In an environment on top of the other: a torchvision that does not fit torch would be in the way of what looks for it.
test-vision: $(VENV)/vision/.installed
	@$(VENV)/vision/bin/python -m pytest $(VISION)

$(VENV)/vision/.installed: $(STAMP)
	@echo "installing timm and Avalanche into $(VENV)/vision (once)"
	@$(BIN)/python -m venv $(VENV)/vision
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		$$($(VENV)/vision/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	@$(VENV)/vision/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[avalanche,timm]"
	@touch $@

ifeq ($(CHROMIUM),)
test-browser:
	@echo "test-browser: skipped, no Chromium (on Debian: apt-get install chromium)"
else
test-browser: $(STAMP)-browser $(STAMP)-docs
	@GESCL_CHROMIUM=$(CHROMIUM) $(BIN)/pytest $(BROWSER)
endif

# What came of it is in results/torture.json and docs/reliability.md.
torture: setup
	@$(BIN)/python -m tests.torture $(TORTURE); status=$$?; $(BIN)/python bench/torture_page.py && exit $$status

mutants: $(STAMP)-mutants
	@$(BIN)/python bench/mutants.py

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

audit: $(STAMP)-audit
	@$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off || { echo \
		"make audit: a package named above has a known weakness, or the advisory service cannot be reached from here" >&2; exit 1; }

clean:
	rm -rf $(VENV) .cache demo dist mutants site
