# Each target sets up what it needs. `make demo` and `make test` are the two to know.
SHELL := bash
BROKER ?= embedded
PY := .venv/bin/python

.PHONY: demo demo-faults test lint bench soak setup tools schema lock clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

setup:  ## .venv with everything in it
	@.ci/setup

tools:
	@.ci/setup tools

ifeq ($(BROKER),kafka)
demo: tools
else
demo: setup
endif
demo:  ## the whole loop in under 90 s (BROKER=kafka: on a real Apache Kafka)
	@.venv/bin/gpuchaos demo --broker $(BROKER)

demo-faults: tools  ## an example workload under each of the nine faults, as root, about 15 minutes
	@PYTHONPATH=examples $(PY) -m nine_faults --broker $(BROKER)

lint: setup  ## ruff and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

test: tools lint  ## everything that must hold
	@$(PY) -m pytest -m "not soak"

bench: tools  ## ratios: worker beside ceiling and plain agent; breach to undo; what the agent costs
	@$(PY) bench/detect.py
	@$(PY) bench/agent.py
	@$(PY) bench/loop.py --frames 96000 --breaches 20

soak: tools  ## the longer runs, before an issue is closed
	@$(PY) -m pytest -m soak

schema: setup  ## writes schema/*.json and what the faults take from the models
	@.venv/bin/gpuchaos schema --write schema
	@$(PY) -m gpuchaos_agent.describe gpuchaos_stream/experiments/faults.json

lock: setup  ## pins all dependencies anew: names, versions, hashes
	@$(PY) -m pip install --quiet uv
	@$(PY) -m uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.11 --all-extras pyproject.toml -o requirements/lock.txt

clean:  ## what the set-up and the tests made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
