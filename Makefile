# Two commands matter: `make train` and `make test`. Both set up .venv themselves and reuse it until pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help train test check unit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(INSTALLED) ## train a small model to search, on the CPU, in minutes
	$(BIN)/sleuth train quickstart

test: check ## run every check and every test
	$(BIN)/pytest -n 2 --dist loadfile

check: $(INSTALLED) ## lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

unit: $(INSTALLED) ## run the quick tests only
	$(BIN)/pytest -m "not e2e"

clean: ## remove caches and builds; .venv and runs stay
	rm -rf dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Sleuth needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1);" \
			"name another one, for example: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@
