# Everything a contributor runs. `make help` lists it; CI runs `make check` and `make test`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The newest Python from 3.11 on; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# Content, not time stamps: a fresh clone or a branch switch installs again only if it must.
STAMP := $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
PYTEST := $(BIN)/pytest
# A file stays in one process, with servers of its own; most tests wait rather than compute.
PROCESSES ?= 2

.PHONY: help venv lock demo test failed fmt lint types imports gate differential chaos chaos-defects schedules unit integration protocol compat cases operator-api crds images manifests e2e fuzz bench bench-quick bench-parts check

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

venv: $(STAMP) ## .venv with the locked dependencies (only what changed)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed (PYTHON=/path/to/python3)"; exit 1; }
	@test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) (half a minute, more on a busy machine)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-*
	@touch $@

COMPILE := $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 --quiet
LIKE_ALL := -c requirements.lock pyproject.toml
lock: venv ## requirements.lock anew, from pyproject.toml, and the parts of it that images need
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check uv
	$(COMPILE) pyproject.toml --all-extras --group dev -o requirements.lock
	$(COMPILE) $(LIKE_ALL) --extra proxy --extra feeder --extra evictor --extra warmer -o images/service/requirements.lock
	$(COMPILE) $(LIKE_ALL) --extra operator --extra feeder -o images/operator/requirements.lock
	$(COMPILE) -c requirements.lock --group build -o images/build.lock
	$(COMPILE) -c requirements.lock --group bench -o bench/requirements.lock

demo: venv ## both tiers and all services on this machine, with an application (KEEP=1: stay up)
	@PYTHONPATH=tests $(BIN)/python -m demo $(if $(KEEP),--keep)

test: venv ## unit, integration and protocol tests, samples of compat, differential and chaos
	@# Servers' data goes below build/, so that even an aborted run leaves nothing elsewhere.
	@mkdir -p build; export TMPDIR=$$(mktemp -d $(CURDIR)/build/test-XXXXXX); trap 'rm -rf $$TMPDIR' EXIT; \
		$(PYTEST) tests -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 5

failed: venv ## the tests that failed in the last run, once more and one at a time
	@mkdir -p build; export TMPDIR=$$(mktemp -d $(CURDIR)/build/test-XXXXXX); trap 'rm -rf $$TMPDIR' EXIT; \
		$(PYTEST) tests --last-failed --last-failed-no-failures none

unit: venv ## pure tests only: seconds
	@$(PYTEST) tests/unit

integration: venv ## against real mongods
	@$(PYTEST) tests/integration

protocol: venv ## unchanged drivers and other people's suites through the proxy (a sample)
	@$(PYTEST) tests/protocol

compat: venv ## all of other people's suites: nothing tiered, all tiered, with evictor and warmer (SETTING=, UNITS='glob ...')
	@PYTHONPATH=tests $(BIN)/python -m support.compat $(if $(SETTING),--setting $(SETTING)) $(foreach unit,$(UNITS),--unit '$(unit)')

chaos: venv ## SEED=, SECONDS=120: everything breaks under applications that know the truth
	@PYTHONPATH=tests $(BIN)/python -m support.chaos $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

chaos-defects: venv ## services that are broken on purpose: the chaos machine notices each
	@PYTHONPATH=tests $(BIN)/python -m support.chaos.noticed

schedules: venv ## SEED=, SECONDS=600, MIX=: the real code under chosen orders of steps, every one for small mixes
	@PYTHONPATH=tests $(BIN)/python -m support.schedules $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(MIX),--mix '$(MIX)')

differential: venv ## SEED=, SECONDS=30: random commands to a plain mongod and to Thermocline, compared
	@PYTHONPATH=tests $(BIN)/python -m support.differential $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

fuzz: venv ## FRAMES=1000000, SEED=: bent messages to a proxy that must neither stop answering nor grow
	@PYTHONPATH=tests $(BIN)/python -m support.fuzzing $(if $(FRAMES),--frames $(FRAMES)) $(if $(SEED),--seed $(SEED))

RIG = PYTHONPATH=tests:bench $(BIN)/python -m rig
bench: $(STAMP)-bench ## the published experiment to scale, beside its figures; as root, hours (ROUNDS=3, ARMS='archive warm', ...)
	@$(RIG) $(RIG_OPTIONS)

bench-quick: $(STAMP)-bench ## five minutes of it, on a smaller scale
	@$(RIG) --quick $(RIG_OPTIONS)

RIG_OPTIONS = $(if $(ARMS),--arms $(ARMS)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	$(if $(SECONDS),--seconds $(SECONDS)) $(if $(PROXY_WORKERS),--proxy-workers $(PROXY_WORKERS)) $(if $(COSTS),--costs)

# What only the rig needs: histograms and pictures.
$(STAMP)-bench: $(STAMP) bench/requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r bench/requirements.lock
	@touch $@

bench-parts: venv ## ratios: the proxy against HAProxy, the feeder's rate and lag
	@PYTHONPATH=tests $(BIN)/python bench/proxy_vs_haproxy.py
	@PYTHONPATH=tests $(BIN)/python bench/feeder.py

fmt: venv ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: venv ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: venv ## mypy, strict
	@$(BIN)/mypy

imports: venv ## import contracts: decision code does no I/O, services are independent
	@$(BIN)/lint-imports --no-logo

cases: venv ## docs/cases.md from tests/cases/cases.json
	@PYTHONPATH=tests $(BIN)/python -m support.cases

# Docker, podman or anything that builds Dockerfiles; TAG= and REGISTRY= (with a slash) name the images.
BUILDER ?= docker
TAG ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' services/common/thermocline_common/__init__.py)
images: ## both images: BUILDER=docker, REGISTRY=registry.example/ TAG= BASE=python:3.12-slim
	@for name in service operator; do \
		$(BUILDER) build -f images/$$name/Dockerfile -t $(REGISTRY)thermocline-$$name:$(TAG) $(if $(BASE),--build-arg BASE=$(BASE)) . || exit 1; done

manifests: venv ## build/manifests/thermocline.yaml from the chart, for those without Helm (NAMESPACE=thermocline VALUES=file)
	@PYTHONPATH=tests $(BIN)/python -m support.helm manifests $(or $(NAMESPACE),thermocline) $(if $(VALUES),--values $(VALUES))

e2e: venv ## chart, operator and services on a real one-node Kubernetes, as root on Debian (SAMPLE=1: 15 minutes of it)
	@mkdir -p build; export TMPDIR=$$(mktemp -d $(CURDIR)/build/test-XXXXXX); trap 'rm -rf $$TMPDIR' EXIT; \
		THERMOCLINE_E2E=$(if $(SAMPLE),sample,all) $(PYTEST) tests/e2e --exitfirst --durations 0 --durations-min 1

operator-api: venv ## the operator against a real API server that breaks, as root: needs what tests/cluster needs
	@tests/cluster/build > /dev/null && THERMOCLINE_KUBECONFIG=$$(tests/cluster/up) $(PYTEST) tests/operator; \
		code=$$?; tests/cluster/down; exit $$code

crds: venv ## crds/, its reference page and the chart's template from the models
	@$(BIN)/python -m thermocline_common.spec.crd crds/
	@$(BIN)/python -m thermocline_operator.status.reference

gate: venv ## what no linter looks for: paths of one machine, registry hosts, a stale CRD
	@$(BIN)/python .ci/gate.py
	@$(BIN)/python -m thermocline_common.spec.crd --check crds/
	@$(BIN)/python -m thermocline_operator.status.reference --check

check: lint types imports gate ## all that needs no server: what CI runs first
