# tandem: everything starts here. `make` alone lists the targets.
VENV ?= .venv
BIN := $(VENV)/bin
# Passed to every pip call, for example PIP_ARGS="--extra-index-url <PyTorch CPU index>".
PIP_ARGS ?=
export PIP_ARGS
# Deployment that `make serve` starts, port of its router (empty: as in the spec), more options for `tandem up`.
SPEC ?= deploy/examples/cpu.yaml
PORT ?=
UP_ARGS ?=
# Where `make bench-transfer` runs; options of other benchmarks, for example BENCH_ARGS="--cases big".
DEVICE ?= cpu
BENCH_ARGS ?=
TRANSFER_JSON = bench/results/transfer-$(if $(filter cuda,$(DEVICE)),h200x2,cpu).json
# Options for pytest, for example PYTEST_ARGS="tests/unit -x".
PYTEST_ARGS ?=

IS_SUPPORTED = import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for p in python3.11 python3.12 python3; do \
	$$p -c '$(IS_SUPPORTED)' 2>/dev/null && { echo $$p; break; }; done)
endif

.DEFAULT_GOAL := help
.PHONY: help serve compile test soak gpu-check bench-transfer bench-router bench-kernels bench-prefill aot lint format install install-serve python clean distclean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

serve: install-serve ## install if needed, then run prefill + decode + router on this machine until Ctrl-C
	@exec $(BIN)/tandem up --spec $(SPEC) $(if $(PORT),--port $(PORT)) $(UP_ARGS)

compile: install ## compile the router's hot path for what is run from here on (two minutes; needs a C compiler)
	@exec $(BIN)/python -m router.compile

test: install lint ## install if needed, lint, then all tests but the long ones
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS)

soak: install ## the long tests; their log goes to bench/results/soak.log
	@mkdir -p bench/results
	@exec bash -o pipefail -c '{ echo "make soak at $$(git rev-parse --short HEAD), $$(nproc) cores, $$(uname -m)"; \
	$(BIN)/python -m pytest -m soak -v $(PYTEST_ARGS); } 2>&1 | sed "s|$(CURDIR)|.|g" | tee bench/results/soak.log'

gpu-check: ## every check that needs CUDA devices (some need two), with the vLLM and NIXL that PYTHON has (nothing is installed)
	@exec $(PYTHON) -m pytest -m gpu -v tests/gpu $(PYTEST_ARGS)

bench-transfer: install ## rows against other layouts and vLLM's connector (DEVICE=cuda: two GPUs, figures judged)
	@mkdir -p bench/results
	$(BIN)/python -m bench.transfer --device $(DEVICE) $(BENCH_ARGS) --out $(TRANSFER_JSON)
	$(if $(filter cuda,$(DEVICE)),$(BIN)/python -m bench.transfer --check $(TRANSFER_JSON))

bench-router: install ## this router beside vllm-router and smg over mock engines, figures judged (two quiet cores)
	@mkdir -p bench/results
	$(BIN)/python -m bench.router $(BENCH_ARGS) --out bench/results/router-cpu.json --check

bench-kernels: ## kernels beside upstream's on this CUDA GPU, figures judged, with the torch that PYTHON has (PEER: upstream's files)
	@mkdir -p bench/results
	$(PYTHON) -m bench.kernels $(if $(PEER),--peer $(PEER)) $(BENCH_ARGS) --out bench/results/kernels-h200.json
	$(PYTHON) -m bench.kernels --check bench/results/kernels-h200.json

bench-prefill: ## split prefill beside plain TP on two CUDA GPUs, figures judged, with the torch and vLLM that PYTHON has
	@mkdir -p bench/results
	$(PYTHON) -m bench.prefill $(BENCH_ARGS) --out bench/results/prefill-h200x2.json
	$(PYTHON) -m bench.prefill --check bench/results/prefill-h200x2.json

aot: install ## compile every kernel for every target without a GPU: registers, spills, integer operations, QMUL4
	@exec $(BIN)/python -m bench.kernels.aot $(AOT_ARGS)

lint: install ## style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

install: python ## the virtual environment with all that serving and checking need
	@$(PYTHON) -I deploy/install.py --venv $(VENV) cpu dev

install-serve: python
	@$(PYTHON) -I deploy/install.py --venv $(VENV) cpu

python:
	@$(if $(PYTHON),$(PYTHON),false) -c '$(IS_SUPPORTED)' || { \
	echo 'Python 3.11 or 3.12 is needed, and $(or $(PYTHON),none of python3.11 python3.12 python3) is not one;' \
	'name it: make serve PYTHON=/path/to/python3.11' >&2; exit 1; }

clean: ## remove build outputs (the nano checkpoint and run logs too) and caches
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## also remove the virtual environment
	rm -rf $(VENV)
