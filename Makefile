PYTHON ?= python3
BIN := .venv/bin
STAMP := $(shell date +%Y%m%d-%H%M%S)

.DEFAULT_GOAL := help
.PHONY: help install demo federation check test integration coverage docs lint format bench mutants

help:  ## Show what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/installed  ## Make .venv with Shoal and its tools, in the versions of constraints.txt

.venv/installed: pyproject.toml packages/shoal-flower/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shoal needs Python 3.11 or later; use make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	@echo 'Installing Shoal and its tools into .venv; this takes some minutes'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable packages/shoal-flower
	touch $@

demo: install  ## Show who recognises a minority's records, what protects them, and the price (under 90 seconds)
	@$(BIN)/python experiments/demo/demo.py --out runs/demo-$(STAMP) $(if $(SEED),--seed $(SEED))

federation: install  ## Run IFCA-MIR on a Flower SuperLink and three SuperNodes of this machine (under three minutes)
	$(BIN)/python experiments/federation/on_loopback.py $(if $(CONFIG),--config $(CONFIG)) --out runs/federation-$(STAMP)

# Floors that the package's default imports touch; pages, commands, runs as directories and processes are not among them.
CHECKED := laws algorithms attacks audit config control core data defenses engine metrics models replay simulation

# A file's tests share their runs, so one worker has them all; what pytest has compiled is kept for the next time.
check: install  ## Run ruff and the laws and references of training, attacks, defences and data, without processes
	$(BIN)/ruff check --quiet
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 PYTHONHASHSEED=0 \
		$(BIN)/python -m pytest -n 2 --dist loadfile -m "not processes" $(CHECKED:%=tests/%)

PYTEST := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile
# Flower, the code of the documentation, scripts: they stand on the package, and are slow, the longest file first.
OUTER := packages tests/examples tests/experiments tests/benchmarks

test: lint  ## Run the linters, the type checker, the import rules, and the package's tests and doctests
	$(PYTEST) -m "not processes" $(OUTER:%=--ignore=%)

integration: install  ## Run the tests that `make test` leaves out: processes, scripts, documentation's code, Flower
	$(PYTEST) $(OUTER)
	$(PYTEST) -m processes $$(grep -rl mark.processes tests --include='test_*.py') $(OUTER:%=--ignore=%)

coverage: install  ## Run the tests and require that they run at least 95 % of the lines and branches (a third slower)
	$(BIN)/python -m pytest --cov --cov-fail-under=95 tests src packages

docs: .venv/docs  ## Build the documentation site into docs/_build/html; a warning, a dead link or a failing example ends it
	rm -rf docs/_build/html  # a page that is no more would stay
	MPLBACKEND=Agg $(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env -d docs/_build/doctrees docs docs/_build/html
	! grep -rlE '<(script|link|img|iframe)[^>]+https?://' --include='*.html' docs/_build/html  # all is served from the folder

# Sphinx is for those who build the site, not for those who run the demo or the tests.
.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

lint: install  ## Run ruff, the type checker and the import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: install  ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install  ## Compare the engine's speed with pfl's, Flower's and plain PyTorch's (an hour; docs/performance.md)
	$(BIN)/python benchmarks/backends.py
	$(BIN)/python benchmarks/bench.py

mutants: .venv/mutants  ## Inject 300 small faults drawn by seed, each against its room's tests, then the others (an hour; resumes)
	$(BIN)/python benchmarks/mutants.py build/mutants

.venv/mutants: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[mutants]'
	touch $@
