# make test     everything: set-up, lint, types, tests (PYTHON=python3.12 make test for another interpreter)
# make golden   rewrite the golden files after a change that is meant
# make docs     rewrite docs/metrics.md and docs/causes.md
# make dashboards   rewrite dashboards/json
# make rules    rewrite prometheus/rules, their tests in prometheus/tests and Grafana's copies of the alerts
# make lock     pin the newest versions that the image may have, with hashes
# make fixtures rewrite the generated vLLM pages in tests/fixtures/vllm
# make bench    CPU cost of a scrape against prometheus_client's parser; BENCH=probe, proxy or simulator for another figure

PYTHON ?= python3
VENV ?= .venv
BENCH ?= scrape
RUN = $(VENV)/bin/python -m

.PHONY: test lint types golden docs dashboards rules lock fixtures bench

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
	$(RUN) exporter.physics.causes > docs/causes.md

dashboards: $(VENV)/installed
	$(RUN) dashboards.build

rules: $(VENV)/installed
	$(RUN) prometheus.build
	$(RUN) tests.rules

LOCK = $(RUN) uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --python-version 3.11 \
	--custom-compile-command "make lock"
lock: $(VENV)/installed
	$(LOCK) --output-file deploy/requirements.lock pyproject.toml
	$(LOCK) --output-file deploy/build.lock --group build

fixtures: $(VENV)/installed
	$(RUN) tests.fixtures.vllm.make_pages

bench: $(VENV)/installed
	$(RUN) bench $(BENCH)

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=python3.13 make test")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade pip
	$(RUN) pip install --quiet --editable . --group dev
	touch $@
