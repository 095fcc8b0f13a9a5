# `make demo` and `make test` need nothing but Python 3.10 to 3.13 and a network for pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_BUDGET ?= 216MiB
# The demo would fit into the page cache of most machines; past it, reads cost what they cost a model bigger than memory.
DEMO_SETTINGS ?= --set reading.page_cache=bypass
DEMO_TIME ?= 5m

.PHONY: demo test lint bench schema clean

demo: $(VENV)/.installed
	$(BIN)/mlx-autotune run --model demo --budget $(DEMO_BUDGET) $(DEMO_SETTINGS) --time $(DEMO_TIME)
	$(BIN)/mlx-autotune show --model demo

test: $(VENV)/.developer
	$(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/mlx-autotune bench --model demo --budget $(DEMO_BUDGET) $(DEMO_SETTINGS)

schema: $(VENV)/.installed
	$(BIN)/python -c 'import json, streaming_core.profile as p; print(json.dumps(p.json_schema(), indent=2))' > profiles/schema.json

$(VENV)/.installed: pyproject.toml setup.py $(wildcard streaming_core/reading/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
