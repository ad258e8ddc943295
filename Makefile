# Two commands are enough on a fresh machine: `make demo` and `make test`. Each installs what it needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Of torch's dependencies: 1.5 GB that `import torch` and training on a CPU do without.
UNUSED_BY_TESTS := triton cuda-toolkit cuda-bindings cuda-pathfinder nvidia-cuda-cccl nvidia-cusolver \
  nvidia-nvjitlink nvidia-nvtx

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "otel_rl needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }

# Tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all lab compose faults fuzz mutants overload tenants lint format bench diagnose-bench diagnose-exam diagnose-second-exam docs generate lock release-check clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.demo  ## a real asynchronous GRPO run, ending in one W&B run
	@$(BIN)/otel-rl demo

# A file's tests stay together, because they share what it starts. Many wait for timers and other processes, so there is
# one process more than two cores. ARGS replaces the options.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

test: ARGS ?= $(PARALLEL)
test: $(VENV)/.installed  ## the tests of each promise, in a few minutes
	@$(BIN)/python -m pytest -m "not slow and not lab" $(ARGS)

test-all: ARGS ?= $(PARALLEL) --durations=30
test-all: $(VENV)/.installed  ## every test: long hunts, every example and parameter, what `make lab` has built
	@$(BIN)/python -m pytest $(ARGS)

lab: $(VENV)/.installed  ## the real Collector, Jaeger, torch, Ray and others for the tests, once for all checkouts
	@$(BIN)/python -m tests.lab

compose: $(VENV)/.installed  ## docker compose up, services killed, down and up again; needs a Docker Engine
	@OTEL_RL_COMPOSE=1 $(BIN)/python -m pytest tests/lab/test_compose.py tests/lab/test_compose_teams.py

faults: $(VENV)/.installed  ## kill -9 and worse, 200 times (FAULT_RUNS, FAULT_SEED), figures in build/faults.json
	@$(BIN)/python -m tests.faults

lint: $(VENV)/.installed  ## ruff, mypy, import-linter, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.semconv.generate --check
	@$(BIN)/python -m docs.generate --check

format: $(VENV)/.installed  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

fuzz: $(VENV)/.installed  ## a million fuzzed requests (FUZZ_REQUESTS, FUZZ_SEED), figures in build/fuzz.json
	@$(BIN)/python -m tests.fuzz

mutants: $(VENV)/.installed  ## wrong lines in the pure core, which tests must notice (ARGS="otel_rl.bridge.rows.reduce*"), figures in build/mutants.json
	@$(BIN)/python -m tools.mutants $(ARGS)

tenants: $(VENV)/.installed  ## attacks beside a victim that sends once a second (ARGS="gzip_members"), figures in build/tenants.json
	@$(BIN)/python -m tests.tenants $(ARGS)

overload: $(VENV)/.installed  ## ten minutes of twice what a bridge can take, figures in build/overload.json
	@$(BIN)/python -m tests.overload

bench: $(VENV)/.installed  ## side by side with what users do today, figures in build/bench.json
	@$(BIN)/python -m bench $(ARGS)

diagnose-bench: $(VENV)/.installed  ## every fault of the demo, and whether it is found, figures in build/diagnose-bench.json
	@$(BIN)/python -m bench.diagnose $(ARGS)

diagnose-exam: $(VENV)/.installed  ## the diagnosis examined with 300 runs drawn from a seed (SEED, CASES), figures in build/diagnose-exam.json
	@$(BIN)/python -m exams.first $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) $(ARGS)

diagnose-second-exam: $(VENV)/.installed  ## the diagnosis examined with systems simulated apart from the first exam (ARGS="--seed 7 --rounds 2")
	@$(BIN)/python -m exams.second $(ARGS)

generate: $(VENV)/.installed  ## write the generated constants, tables and lists of the documentation
	@$(BIN)/python -m tools.semconv.generate
	@$(BIN)/python -m docs.generate

DOCS := build/docs-environment

docs: $(DOCS)/.installed  ## the documentation as a site, into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "Written: open build/site/index.html"

$(DOCS)/.installed: tools/docs.lock.txt
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

release-check:  ## build wheel and source distribution, try them as users will; into build/release (ARGS="--extras bridge")
	@$(CHECK_PYTHON)
	@$(PYTHON) tools/release_check.py $(ARGS)

LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-header
LOCK_ALL := $(LOCK) --universal --python-version 3.11 pyproject.toml

lock: $(VENV)/.installed  ## pin every dependency, with hashes
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r tools/uv.lock.txt
	@$(LOCK_ALL) --all-extras --group dev -o requirements.lock
	@$(LOCK_ALL) --extra demo --group build --constraint requirements.lock -o requirements-demo.lock
	@$(LOCK_ALL) --extra all --group build --constraint requirements.lock -o requirements-image.lock
	@echo uv | $(LOCK) --universal --no-annotate - -o tools/uv.lock.txt
	@for set in docs release; do \
	  $(LOCK) --universal --no-annotate --python-version 3.11 tools/$$set.in -o tools/$$set.lock.txt; done
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --constraint requirements-image.lock \
	  $(UNUSED_BY_TESTS:%=--no-emit-package %) --extra bridge pyproject.toml tests/lab/frameworks/requirements.in \
	  -o tests/lab/frameworks/requirements.lock
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --constraint tests/lab/frameworks/requirements.lock tests/lab/frameworks/rllib.in \
	  -o tests/lab/frameworks/rllib.lock
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --extra bridge pyproject.toml tests/lab/frameworks/tunix.in -o tests/lab/frameworks/tunix.lock
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --override tests/lab/frameworks/vllm.overrides $(UNUSED_BY_TESTS:%=--no-emit-package %) \
	  --extra bridge pyproject.toml tests/lab/frameworks/vllm.in -o tests/lab/frameworks/vllm.lock
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --resolution lowest-direct $(UNUSED_BY_TESTS:%=--no-emit-package %) --extra wandb pyproject.toml \
	  tests/lab/frameworks/oldest.in -o tests/lab/frameworks/oldest.lock
	@$(LOCK) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --resolution lowest-direct --extra bridge pyproject.toml \
	  tests/lab/frameworks/oldest_sdk.in -o tests/lab/frameworks/oldest_sdk.lock

# Both sets are of the same versions. What is installed for development is enough for the demo.
$(VENV)/.demo: pyproject.toml requirements-demo.lock
	@$(CHECK_PYTHON)
	@$(PYTHON) tools/install.py demo --venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml requirements.lock
	@$(CHECK_PYTHON)
	@$(PYTHON) tools/install.py dev --venv $(VENV)
	@touch $(VENV)/.demo $@

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist mutants wandb .otel_rl .mypy_cache .ruff_cache .pytest_cache .hypothesis
