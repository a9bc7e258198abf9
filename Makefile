# make demo: the whole pipeline and its report. make help: the rest.
.PHONY: help setup demo test test-robosuite test-isaaclab test-envs test-engines lint format bench bench-render bench-engines
.DEFAULT_GOAL := help
SHELL := /bin/bash

# A Python 3.12 or 3.13: on PATH, or one that only pyenv knows.
PYTHON ?= $(shell for candidate in python3.12 python3 python3.13 \
	"$$(pyenv prefix 3.12 2>/dev/null)/bin/python3" "$$HOME"/.pyenv/versions/3.12*/bin/python3; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 12), (3, 13)))' 2>/dev/null \
	&& { echo "$$candidate"; break; }; done)
BIN := .venv/bin
# Without compiled modules every process would compile torch again, and tests start many.
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.synced
JOBS ?= 2

help:
	@echo "make demo    demonstrations, cloning, fine-tuning, evaluation and a simulated arm; ends with a report page"
	@echo "make test    all tests            make lint    style, types, import rules"
	@echo "make bench   all benchmarks       make setup   only install what is needed, into .venv"
	@echo "make test-engines    the tests of robosuite, Isaac Lab and other environments, each in an environment of its own"

setup: $(STAMP)

# uv as a module of PYTHON, as a command that works here, or installed with pip (into .venv-uv where pip may not write).
$(STAMP): pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "robopo needs Python 3.12: install it (for example: pyenv install 3.12), or run make PYTHON=/path/to/python3.12"; exit 2; }
	@set -e; \
	if "$(PYTHON)" -m uv --version >/dev/null 2>&1; then uv="$(PYTHON) -m uv"; \
	elif uv --version >/dev/null 2>&1; then uv=uv; \
	elif "$(PYTHON)" -m pip install --quiet uv >/dev/null 2>&1 && "$(PYTHON)" -m uv --version >/dev/null 2>&1; then uv="$(PYTHON) -m uv"; \
	else "$(PYTHON)" -m venv .venv-uv && .venv-uv/bin/pip install --quiet uv; uv=.venv-uv/bin/uv; fi; \
	echo "$$uv sync --frozen --python $(PYTHON)"; \
	$$uv sync --frozen --quiet --python "$(PYTHON)"; \
	echo "$$uv" > $(STAMP)

# Settings travel in ARGS: make demo ARGS="seed=3".
demo: $(STAMP)
	$(BIN)/robopo demo $(ARGS)

test: $(STAMP)
	UV="$$(cat $(STAMP))" $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# Engines whose packages can't live together: each has an environment of its own.
test-engines: test-robosuite test-isaaclab test-envs

test-robosuite: .venv-robosuite/.synced
	OMP_NUM_THREADS=1 .venv-robosuite/bin/python -m pytest -q -n $(JOBS) --timeout 600 \
		tests/engines/robosuite tests/contract -k robosuite

test-isaaclab: .venv-isaaclab/.synced
	WARP_CACHE_PATH=$(CURDIR)/.venv-isaaclab/warp-cache OMP_NUM_THREADS=1 .venv-isaaclab/bin/python -m pytest -q --timeout 900 \
		tests/engines/isaaclab tests/contract -k isaaclab

test-envs: .venv-envs/.synced
	OMP_NUM_THREADS=1 .venv-envs/bin/python -m pytest -q -n $(JOBS) --timeout 600 tests/engines/envs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) .venv-robosuite/.synced
	.venv-robosuite/bin/python benchmarks/sim_throughput.py --json runs/sim_throughput.json
	$(BIN)/python benchmarks/dppo_update.py --json runs/dppo_update.json
	$(BIN)/python benchmarks/policy_latency.py --json runs/policy_latency.json
	$(BIN)/python benchmarks/flow_vs_ddim.py --json runs/flow_vs_ddim.json
	$(BIN)/python benchmarks/jagg.py --json runs/jagg.json

bench-render: $(STAMP)
	@mkdir -p runs
	$(BIN)/python benchmarks/render_throughput.py --json runs/render_throughput.json

bench-engines: $(STAMP) .venv-robosuite/.synced .venv-isaaclab/.synced
	$(BIN)/python benchmarks/engines.py --json runs/engines.json

.venv-%/.synced: $(STAMP)
	@mkdir -p runs
	UV_PROJECT_ENVIRONMENT=.venv-$* $$(cat $(STAMP)) sync --frozen --quiet --extra $* --python "$(PYTHON)"
	@touch $@
