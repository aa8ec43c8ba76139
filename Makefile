# Everything a person types here. `make` alone lists it.
#
# Variables   PYTHON    interpreter to build .venv with (3.11 or newer)
#             PIP_ARGS  further options for pip, such as another package index (README, "Platforms")
#             ARGS      further options for the command that the target runs
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
KERNELS := $(VENV)/.kernels
SHORT_BENCH := --only a,b,e,f,g --peers stoker,transformers

.DEFAULT_GOAL := help
.PHONY: help setup serve test conformance soak lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV) $(KERNELS) ## create .venv with everything that serving, tests and linters need

serve: $(RUNTIME) $(KERNELS) ## serve the demo model on 127.0.0.1:8000 (sets up by itself; ARGS="--port 9000")
	@exec $(BIN)/stoker serve --model demo --data-dir ./.stoker $(ARGS)

test: lint $(KERNELS) ## lint, then run every test (sets up by itself; ARGS="tests/cli -x")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not soak" $(ARGS)

conformance: $(DEV) ## prompts, answers and constrained calls against the published ones, at length (ARGS="-k render")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/conformance $(ARGS)

soak: $(DEV) ## the tests that take minutes: a 200k-token prompt over HTTP with short questions beside it (ARGS="-k 200k")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -m soak $(ARGS)

lint: $(DEV) ## formatting, lint rules, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

bench: $(DEV) $(KERNELS) ## Stoker beside transformers, in turns, a few minutes (all: ARGS="--rounds 3"; docs/benchmarks.md)
	@mkdir -p build
	$(BIN)/python -m bench.peers --json build/bench.json $(or $(ARGS),$(SHORT_BENCH))

clean: ## remove the environments, caches and outputs made here (keeps your data in .stoker)
	rm -rf $(VENV) .peers .clients build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f stoker/kernels/native/*.so
	find stoker bench tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An interpreter counts only if it is new enough and complete: without ssl pip reaches no index.
$(BIN)/pip:
	@for python in $(PYTHON); do \
		if "$$python" -c 'import ensurepip, ssl, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "creating $(VENV) with $$("$$python" --version)"; \
			exec "$$python" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "no Python >= 3.11 with the venv and ssl modules among: $(PYTHON)" >&2; \
	echo "install one (on Debian and Ubuntu also its python3-venv package), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
	exit 1

$(RUNTIME): requirements/runtime.txt requirements/demo.txt pyproject.toml | $(BIN)/pip
	@echo "installing Stoker (PyTorch is large; this takes minutes the first time)"
	@$(PIP) --requirement requirements/runtime.txt
	@$(PIP) --no-deps --requirement requirements/demo.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The install compiles them too; this does it again when a source has changed, and shows what comes of it.
$(KERNELS): stoker/kernels/native/build.py $(wildcard stoker/kernels/native/src/*) | $(RUNTIME)
	@$(BIN)/python -m stoker.kernels.native.build
	@touch $@

$(DEV): requirements/dev.txt $(RUNTIME)
	@echo "installing the development tools"
	@$(PIP) --requirement requirements/dev.txt
	@touch $@

-include bench/peers.mk clients/clients.mk
