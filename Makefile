# Everything a fresh machine with Python 3.11 or newer needs is set up by the target that needs it.
# `make help` lists the targets.

SHELL := /bin/sh
BIN := .venv/bin
SEED ?=
SEEDS ?=
ROUNDS ?=
ARGS ?=
# One more than there are processors: tests that start processes wait for much of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
export PYTHONUNBUFFERED := 1

.PHONY: help setup demo test check services bench clients simulate order fmt docs clean-room clean

help: ## list these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: setup ## start the product with a simulated backend and live traffic (ARGS="--no-traffic")
	@exec $(BIN)/obleth demo $(ARGS)

test: setup services check ## everything CI checks
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## format, lint, types and import contracts, without running anything
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: .venv/.ready ## .venv and browser libraries, exactly what the lock files name

LIBRARIES := controlplane/dashboard/package-lock.json deploy/vendor.py

.venv/.ready: pyproject.toml uv.lock deploy/dev/setup $(LIBRARIES)
	@deploy/dev/setup
	@touch $@

services: ## what the tests need: PostgreSQL and Redis, started if they do not answer; Chromium
	@deploy/dev/services

bench: setup ## what a decision costs by how many wait, as ratios
	$(BIN)/python -m tests.bench.decisions $(ARGS)

clients: setup ## run clients that are heavy to install (Node, LangChain, LiteLLM) through the gateway
	@deploy/dev/clients
	$(BIN)/pytest -q tests/clients/installed $(ARGS)

faults: setup services ## break a fleet of real processes, with heartbeats as by default, and say what it took
	$(BIN)/pytest -q tests/faults --default-timings --fault-rounds=$(or $(ROUNDS),1) --timeout=900 $(ARGS)

simulate: setup ## SEEDS=n fleets broken and healed in virtual time; SEED=n tells one line by line
	$(BIN)/python -m tests.simulation.fleet $(if $(SEED),$(SEED),--seeds $(or $(SEEDS),1000))

order: setup ## a fleet that goes by one order against one replica that gets everything (ARGS="--seeds 20")
	$(BIN)/python -m tests.simulation.fleet_order $(ARGS)

fmt: setup ## format and apply safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## write what is written from the code: reference pages, the chart's schema
	$(BIN)/python -m deploy.dev.reference

clean-room: setup ## build the release, install it elsewhere, and run the demo from it
	$(BIN)/python -m deploy.dev.clean_room

clean: ## remove what the other targets made here
	rm -rf .venv .venv-clients .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build \
		controlplane/dashboard/node_modules controlplane/dashboard/static/vendor
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
