# Everything a newcomer types. The only thing to install first is Python 3.11 or newer.
#   make PYTHON=/path/to/python3.12 ...   uses that one
#   PYTEST="-k penalty" make test         passes more to pytest

SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { command -v $$p; break; }; done)
UV := $(shell command -v uv 2>/dev/null)

# The tests compare with PyTorch's CPU build, which users need not have. It is on PyTorch's own index;
# a machine that brings its own wheels (PIP_FIND_LINKS) is left to find it there.
TORCH := torch==2.13.0
TORCH_INDEX ?= $(if $(PIP_FIND_LINKS),,--index-url https://download.pytorch.org/whl/cpu)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
READY := .venv/.ready
TORCH_READY := .venv/.torch

.PHONY: setup train test test-full docs docs-serve bench lint typecheck format lock dist clean help
.DEFAULT_GOAL := help

help:
	@echo 'make setup      the virtual environment, in .venv, from requirements.lock'
	@echo 'make train      teach a pole to swing up, in minutes'
	@echo 'make test       the tests that must pass'
	@echo 'make test-full  the slow ones too, and what they cover'
	@echo 'make docs       the documentation, in site/'
	@echo 'make bench      the benchmarks'
	@echo 'make lint       ruff and pyright;  make format  applies what ruff can'
	@echo 'make lock       resolve requirements.lock anew (needs uv)'
	@echo 'make dist       wheel and sdist, in dist/'
	@echo 'make clean      remove .venv, caches and build products'

setup: $(READY)

$(READY): requirements.lock pyproject.toml
ifeq ($(PYTHON),)
	@echo 'No Python 3.11 or newer was found. Install one (Debian: python3 python3-venv), or name it: make PYTHON=...' >&2
	@exit 1
endif
	@echo 'Setting up .venv with $(PYTHON)'
ifneq ($(UV),)
	@test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) .venv
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
else
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv \
		|| { rm -rf .venv; echo 'Debian has the module venv in its package python3-venv.' >&2; exit 1; }
	@$(PIP) install --no-deps -r requirements.lock
	@$(PIP) install --no-deps --editable .
endif
	@touch $@

$(TORCH_READY): $(READY)
	@echo 'Installing $(TORCH) (CPU) for the tests'
	@if $(PIP) install $(TORCH_INDEX) $(TORCH); then touch $@; else printf '\n%s\n\n' \
		'*** $(TORCH) COULD NOT BE INSTALLED: THE PYTORCH TESTS WILL BE SKIPPED ***' >&2; fi

train: $(READY)
	$(BIN)/gpld train cartpole-swingup --preset demo

test: $(TORCH_READY)
	@$(BIN)/pytest -n 2 -m 'not slow and not gpu' $(PYTEST)

test-full: $(TORCH_READY)
	@XLA_FLAGS= $(BIN)/pytest -n 2 -m 'not gpu' --cov --cov-report=term:skip-covered $(PYTEST)

docs: $(READY)
	@PYTHONPATH=scripts $(BIN)/zensical build --strict
	@echo 'open site/index.html'

docs-serve: $(READY)
	@PYTHONPATH=scripts $(BIN)/zensical serve

bench: $(READY)
	@for name in environments penalty update; do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py --out .cache/bench || exit 1; done

lint: typecheck
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

typecheck: $(READY)
	@$(BIN)/pyright

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

lock:
	uv pip compile --universal --python-version 3.11 pyproject.toml --extra dev -o requirements.lock --no-header --quiet

dist: $(READY)
	@$(BIN)/hatchling build -d dist

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis .coverage* htmlcov dist site
