# Two targets a newcomer needs: `make demo` and `make test`. Both build .venv when it is absent.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PYTHONWARNINGS ?=

.PHONY: demo test test-all lint clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

# torch is pinned to a release with a CPU wheel so that the tests never pull CUDA libraries by accident.
$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/simctl what-if --ctx 1M --gpu A10

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 -m "not slow and not vllm and not gpu"

test-all: lint
	$(BIN)/pytest -n 2 -m "not vllm and not gpu"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
