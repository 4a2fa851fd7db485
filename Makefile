# Needs Python 3.11 or later (as python3, or PYTHON=…), make, git and PyPI. Nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.PHONY: help setup demo test lint test-slow test-embedded test-agents docs bench clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# Stamp files: a step is repeated only when what it depends on has changed.
.make-venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  f"error: Python 3.11 or later is needed; $(PYTHON) is {v.major}.{v.minor}. Use make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

.make-install: .make-venv pyproject.toml constraints.txt
	$(PIP) -q torch
	$(PIP) -q -e .
	@touch $@

.make-dev: .make-install
	$(PIP) -q -e '.[dev,llm,openevolve,quantized,video]'
	@touch $@

.make-docs: .make-dev
	$(PIP) -q -e '.[dev,docs,llm,openevolve,quantized,video]'
	@touch $@

setup: .make-install  ## Create .venv and install galoop into it

demo: .make-install  ## Two rounds on the embedded model, no key needed
	$(BIN)/gal models fetch smollm2-135m
	$(BIN)/gal loop examples/demo.toml --run-dir runs/demo

lint: .make-dev  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Style, types and the fast tests
	$(BIN)/python -m pytest

test-slow: .make-dev  ## The tests that take minutes
	$(BIN)/python -m pytest -m slow

test-embedded: .make-dev  ## The tests on the embedded model
	$(BIN)/gal models fetch smollm2-135m
	$(BIN)/python -m pytest -m embedded

test-agents: .make-dev  ## Claude Code and Codex (about 750 MB) against a fake API, no key
	$(PIP) -q -e '.[agents]' claude-agent-sdk openai-codex
	$(BIN)/python -m pytest -m agents

docs: .make-docs  ## Build the documentation; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: .make-install  ## Paired evaluation against kvpress's own pipeline
	$(BIN)/gal models fetch smollm2-135m
	$(BIN)/python benchmarks/paired_evaluation.py

clean:  ## Remove what make made (not runs/)
	rm -rf $(VENV) docs/_build build dist .make-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
