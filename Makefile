# `make quickstart` or `make test`, alone in a fresh clone: each creates what it needs, a second run reuses it.
#
#   PYTHON=/path/to/python   use this Python (3.11 to 3.13) instead of the one that is looked for
#   VENV=dir                 environment of quickstart and test (.venv)
#   WORKERS=n                test processes (one per core, at most 8)
#   TESTS=path               the tests to run (tests)
#
# Compiled JAX programs are kept in .cache/jax of this directory, so that second runs start fast (make clean drops it).
# Nothing uses the network once the environment is installed.

SHELL := /bin/sh
VENV ?= .venv
VENV_LATEST ?= .venv-latest
PYTHON ?=
TESTS ?= tests
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ "$$cores" -lt 8 ] && echo "$$cores" || echo 8)
CACHE := $(CURDIR)/.cache
RUN := HF_HUB_OFFLINE=1 JAX_COMPILATION_CACHE_DIR="$(CACHE)/jax" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5
PYTEST := -m pytest -n $(WORKERS) --dist worksteal --durations=15

# $(call create_venv,DIRECTORY,OLDEST MINOR VERSION): a virtual environment of the first Python that really runs and is
# 3.OLDEST to 3.13. Where python3 is the shim of a version manager, the versions that it manages are looked at too.
define create_venv
	@oldest=$(2); found=; \
	accepted() { "$$1" -c "import sys, venv, ensurepip; sys.exit(not (3, $$oldest) <= sys.version_info[:2] <= (3, 13))" >/dev/null 2>&1; }; \
	if [ -n "$(PYTHON)" ]; then \
	  accepted "$(PYTHON)" && found="$(PYTHON)"; \
	else \
	  shims=$$(dirname "$$(command -v python3 || echo /nonexistent/python3)"); \
	  for candidate in python3 python3.13 python3.12 python3.11 "$$shims"/../versions/3.1[123]*/bin/python3; do \
	    if accepted "$$candidate"; then found=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$found" ]; then \
	  echo "make: need Python 3.$$oldest to 3.13 with venv; $(if $(PYTHON),PYTHON=$(PYTHON) is not one,none was found: install one or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3)" >&2; \
	  exit 1; \
	fi; \
	echo "creating $(1) with $$("$$found" --version)"; \
	"$$found" -m venv --clear "$(1)"
endef

.PHONY: help quickstart test test-slow test-latest lint clean

help:
	@echo "make quickstart    install into $(VENV) and run the whole stack on the bundled sample"
	@echo "make test          install with the dev extra and run the tests"
	@echo "make test-slow     run the slow tests too"
	@echo "make test-latest   run the tests in $(VENV_LATEST) with the newest releases of all dependencies (Python 3.12 or newer)"
	@echo "make lint          ruff"
	@echo "make clean         remove environments, caches and build products; runs/ stays"
	@echo "variables: PYTHON VENV WORKERS TESTS (see the head of the Makefile)"

quickstart: $(VENV)/.installed
	@$(RUN) $(VENV)/bin/thoth quickstart

test: $(VENV)/.installed-dev
	@$(RUN) $(VENV)/bin/python $(PYTEST) $(TESTS)

test-slow: $(VENV)/.installed-dev
	@$(RUN) $(VENV)/bin/python $(PYTEST) -m "slow or not slow" $(TESTS)

test-latest: $(VENV_LATEST)/bin/python
	@echo "upgrading everything in $(VENV_LATEST) to its newest release"
	@$(VENV_LATEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e ".[dev]"
	@$(VENV_LATEST)/bin/python -c "import jax, platform; print('Python', platform.python_version(), 'jax', jax.__version__)"
	@$(RUN) $(VENV_LATEST)/bin/python $(PYTEST) $(TESTS)

lint: $(VENV)/.installed-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

$(VENV)/bin/python:
	$(call create_venv,$(VENV),11)

$(VENV_LATEST)/bin/python:
	$(call create_venv,$(VENV_LATEST),12)

# Reinstalled only when the description of the package changes; the source itself is used in place.
$(VENV)/.installed: setup.py pyproject.toml | $(VENV)/bin/python
	@echo "installing thoth-jax and its dependencies into $(VENV) (a few minutes the first time)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: setup.py pyproject.toml | $(VENV)/bin/python
	@echo "installing thoth-jax with its test tools into $(VENV) (a few minutes the first time)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) $(VENV_LATEST) .cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
