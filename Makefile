PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint scripts/constraints.txt
MODEL = models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: run run-model test lint format bench soak package-check clean

run: $(VENV)/.ready-run            ## one run of the main configuration, from an empty machine
	$(BIN)/interlock run configs/quickstart.yaml --out runs/quickstart --overwrite

run-model: $(VENV)/.ready-torch $(MODEL)  ## a real model answers, from an empty machine: 200 MB and more to fetch at first
	$(BIN)/interlock run configs/smollm.yaml --out runs/smollm --overwrite

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

$(VENV)/.ready-torch: pyproject.toml scripts/constraints.txt | $(BIN)/python
	$(PIP) --editable '.[torch]' && touch $(VENV)/.ready-run $@

$(VENV)/.ready-dev: pyproject.toml scripts/constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]' && touch $(VENV)/.ready-run $(VENV)/.ready-torch $@

$(MODEL): | $(BIN)/python
	$(BIN)/python scripts/fetch_model.py $@
