# make test     everything: set-up, lint, types, tests (PYTHON=python3.12 make test for another interpreter)
# make golden   rewrite the golden files after a change that is meant
# make docs     rewrite docs/metrics.md          make dashboards   rewrite dashboards/json
# make fixtures rewrite the generated vLLM pages in tests/fixtures/vllm
# make bench    CPU cost of a scrape against prometheus_client's parser

PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m

.PHONY: test lint types golden docs dashboards fixtures bench

test: lint types
	$(RUN) pytest

lint: $(VENV)/installed
	$(RUN) ruff check
	$(RUN) ruff format --check

types: $(VENV)/installed
	$(RUN) mypy

golden: $(VENV)/installed
	UPDATE_GOLDEN=1 $(RUN) pytest -q tests/test_normalize.py -k golden

docs: $(VENV)/installed
	$(RUN) exporter.catalogue > docs/metrics.md

dashboards: $(VENV)/installed
	$(RUN) dashboards.build

fixtures: $(VENV)/installed
	$(RUN) tests.fixtures.vllm.make_pages

bench: $(VENV)/installed
	$(RUN) bench scrape

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=python3.13 make test")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade pip
	$(RUN) pip install --quiet --editable . --group dev
	touch $@
