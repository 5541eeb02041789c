# Each target sets up what it needs. `make demo` and `make test` are the two to know.
SHELL := bash
BROKER ?= embedded
HALF_HOUR_S ?= 1800
PY := .venv/bin/python

# A part of the lock, for an image: $(1) what is wanted, $(2) the file's name.
image_lock = $(PY) -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
  --no-annotate --python-version 3.11 --constraints requirements/lock.txt $(1) -o requirements/$(2).txt

.PHONY: chart demo demo-faults test lint bench half-hour soak setup kafka tools schema pictures dashboards lock clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

setup:  ## .venv with everything in it
	@.ci/setup

kafka:
	@.ci/setup kafka

tools:
	@.ci/setup tools

ifeq ($(BROKER),kafka)
demo: kafka
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
	@$(PY) -m pytest -m "not soak" -n 3 --dist loadscope

bench: tools  ## ratios: worker beside ceiling and plain agent; breach to undo; what the agent costs
	@$(PY) bench/detect.py
	@$(PY) bench/agent.py
	@$(PY) bench/web.py
	@$(PY) bench/loop.py --frames 96000 --breaches 20

half-hour: tools  ## half an hour with faults, notifications and a receiver that is away (HALF_HOUR_S=300: five minutes)
	@GPUCHAOS_HALF_HOUR_S=$(HALF_HOUR_S) $(PY) -m pytest -m soak tests/notify/test_notify_half_hour.py

soak: tools  ## the longer runs, before an issue is closed
	@$(PY) -m pytest -m soak

schema: setup  ## writes schema/*.json and what the faults take from the models
	@.venv/bin/gpuchaos schema --write schema
	@.venv/bin/gpuchaos serve --openapi > schema/http/openapi.json
	@$(PY) -m gpuchaos_agent.describe gpuchaos_stream/experiments/faults.json

dashboards: setup  ## writes dashboards/*.json from their Python
	@PYTHONPATH=dashboards $(PY) -m gpuchaos_dashboards --write

chart:  ## copies rules, alerts and dashboards into the Helm chart
	@cd helm/gpuchaos-stream/files && rm -rf rules prometheus dashboards && mkdir rules prometheus dashboards
	@cp rules/*.yaml helm/gpuchaos-stream/files/rules/
	@cp rules/prometheus/*.yaml helm/gpuchaos-stream/files/prometheus/
	@cp dashboards/*.json helm/gpuchaos-stream/files/dashboards/

pictures: tools  ## the pictures of the documentation, made anew: page and report
	@PYTHONPATH=examples:tests/report $(PY) tests/web/web_pictures.py

lock: setup  ## pins all dependencies anew: names, versions, hashes
	@$(PY) -m pip install --quiet uv
	@$(PY) -m uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.11 --all-extras pyproject.toml -o requirements/lock.txt
	@$(call image_lock,--extra processor --extra web pyproject.toml,worker)
	@$(call image_lock,--extra agent --extra tracing pyproject.toml,agent)
	@grep -o 'hatchling==[0-9.]*' pyproject.toml | head -1 | $(call image_lock,-,build)

clean:  ## what the set-up and the tests made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
