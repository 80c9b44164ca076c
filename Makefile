PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: run test lint format bench soak package-check clean

run: $(VENV)/.ready-run            ## one run of the main configuration, from an empty machine
	$(BIN)/interlock run configs/quickstart.yaml --out runs/quickstart --overwrite

test: $(VENV)/.ready-dev           ## the whole suite
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(VENV)/.ready-run          ## microseconds per boundary
	$(BIN)/python benchmarks/boundary.py

soak: $(VENV)/.ready-dev           ## the long tests, with more examples
	$(BIN)/python -m pytest -q -m soak --hypothesis-profile=soak

package-check: $(VENV)/.ready-dev  ## the wheel, used from an empty environment
	PYTHON=$(BIN)/python sh scripts/package_check.sh

clean:
	rm -rf $(VENV) build dist runs *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again only when what has to be installed may have changed.
$(VENV)/.ready-run: pyproject.toml | $(BIN)/python
	$(PIP) --editable . && touch $@

$(VENV)/.ready-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]' && touch $(VENV)/.ready-run $@
