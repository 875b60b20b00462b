.DEFAULT_GOAL := help
.PHONY: help venv install install-dev demo bench table1 figures table2 mixed digits mnist lock test test-all test-long laws lint types format results release-results docs walkthrough picture cost clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
export OMP_NUM_THREADS ?= 2

EXAMPLES ?= yes

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "ctem needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." \
		"Say which to use: make PYTHON=python3.11 …" >&2; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv

# $(call pinned,LOCK): the files of the lock, each checked by its hash; then torch, of which every package index has its
# own build, by its version; then the project, built by the backend that came with the lock.
define pinned
@$(PIP) install --require-hashes --no-deps --only-binary :all: -r locks/$(1).txt
@$(PIP) install -c constraints.txt torch
@$(PIP) install --no-deps --no-build-isolation -e .
endef
PINS := pyproject.toml constraints.txt locks/install.txt

# The stamps are touched last, so an install that was cut short starts again.
.venv/.installed: $(PINS) | $(BIN)/python
	@echo "installing pinned versions into .venv (a few minutes the first time)"
	$(call pinned,install)
	@touch $@

.venv/.installed-dev: $(PINS) locks/dev.txt | $(BIN)/python
	@echo "installing pinned versions and the developer tools into .venv (a few minutes the first time)"
	$(call pinned,dev)
	@touch .venv/.installed $@

lock: $(BIN)/python ## write the hashes of locks/*.txt anew, after a change of constraints.txt or of what pyproject.toml asks for
	@echo "asking the package index for the hashes of every pinned version"
	@$(BIN)/python locks/write.py

venv: $(BIN)/python ## make an empty .venv (PYTHON=… chooses the interpreter, 3.11 or newer)

install: .venv/.installed ## install the package, pinned, into .venv

install-dev: .venv/.installed-dev ## the same, with the developer tools

demo: .venv/.installed ## fit the Palmer penguins: nats, imputations, outliers, a saved model and a report
	@$(BIN)/python -m examples.demo

bench: .venv/.installed-dev ## held-out nats against seconds beside the peers, rates, memory, growth (QUICK=--quick: 5 minutes)
	@$(BIN)/python -m experiments.tables.bench --device auto $(QUICK)

table1: .venv/.installed-dev ## the paper's Table 1: continuous densities
	@$(BIN)/python -m experiments.paper.table1 --device auto

figures: .venv/.installed-dev ## the paper's figures, from the fits of table1
	@$(BIN)/python -m experiments.paper.figures --device auto

table2: .venv/.installed-dev ## the paper's Table 2: densities on 91×91 grids
	@$(BIN)/python -m experiments.paper.table2 --device auto

mixed: .venv/.installed-dev ## the paper's mixed experiment, R² × {0..15}
	@$(BIN)/python -m experiments.paper.mixed --device auto

digits: .venv/.installed-dev ## 8×8 binary digits: train, sample and judge in under 5 minutes on two cores
	@$(BIN)/python -m experiments.images.mnist --side 8

mnist: .venv/.installed-dev ## binary MNIST: samples and likelihood, in 11 minutes on an H200
	@$(BIN)/python -m experiments.images.mnist --side 28 --device auto

# Two processes of one thread each; a file's tests stay together, so that they share what they fit.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

# Types are checked beside the laws: mypy has one process, and the laws two.
test: lint ## lint, types, and every law: tests and doctests; what CI runs
	@$(MAKE) --no-print-directory -j 2 types laws

laws: .venv/.installed-dev ## the tests and doctests alone
	@echo "running the tests and doctests"
	@$(PYTEST)

test-all: test test-long ## the same, then the long ones

test-long: .venv/.installed-dev ## the long ones alone: fuzzed tables, scripts, processes, the site, the browser (AGAIN=--last-failed: what failed)
	@echo "running the long tests"
	@$(PYTEST) -m long $(AGAIN)

lint: .venv/.installed-dev ## ruff, check only
	@echo "checking lint and format (ruff)"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format --check . || { echo "'make format' fixes this" >&2; exit 1; }

types: .venv/.installed-dev ## mypy, strict, on the library
	@echo "checking types (mypy)"
	@$(BIN)/mypy

format: .venv/.installed-dev ## fix lint and format in place
	@echo "formatting (ruff)"
	@$(BIN)/ruff check -q --fix .
	@$(BIN)/ruff format -q .

results: .venv/.installed ## write a page per table into experiments/results, and list the results, the oldest first
	@$(BIN)/python -m experiments.pages

release-results: .venv/.installed-dev ## make every result again, the oldest first, in pieces (PIECES="--only NAME", "--device cpu", "--list")
	@$(BIN)/python -m experiments.remake $(PIECES)

docs: .venv/.installed-dev ## the site, into build/site: every example run, warnings are errors (EXAMPLES= leaves examples out)
	@$(BIN)/python -m sphinx -b html -E -W --keep-going -q $(if $(EXAMPLES),,-D plot_gallery=0) docs build/site
	@echo "the site is in build/site/index.html"

walkthrough: .venv/.installed ## run the commands of docs/walkthrough.md and the code of the guides again and put in what they print
	@$(BIN)/python docs/console.py docs/walkthrough.md docs/guides/*.md

cost: .venv/.installed ## write docs/cost.md from what experiments/tables/large.py has measured
	@$(BIN)/python docs/cost.py

picture: .venv/.installed ## draw docs/report.png, the report that the README shows (needs Chromium)
	@$(BIN)/python docs/picture.py

clean: ## remove caches, builds and quick results; .venv and data stay
	@echo "removing caches, builds and quick results"
	@rm -rf build dist docs/gallery docs/reference docs/results .pytest_cache .mypy_cache .ruff_cache .hypothesis experiments/results/quick
	@find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +
