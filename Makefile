# `make demo` and `make test` do all their set-up; `make` alone tells what there is.
# Needs only make, bash and Python 3.11 or newer (PYTHON=... picks another one).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
PINS := deploy/constraints-cpu.txt
PROTOS := $(wildcard protos/chunkmesh/v1/*.proto)
PROTOC = python -m grpc_tools.protoc -Iprotos $(PROTOS)

.PHONY: help
help: ## Tell what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.has-demo ## Show the whole system: a mesh of two stages, real model, cache, timeline
	chunkmesh demo

.PHONY: test
test: $(VENV)/.has-test ## Run all tests but the slow ones
	status=0; \
	pytest -n 2 -m "not slow and not gpu and not alone" || status=$$?; \
	pytest -m "alone and not slow and not gpu" tests/integration || status=$$?; \
	exit $$status

.PHONY: test-all
test-all: $(VENV)/.has-test ## Run the full matrices too
	pytest -m "not gpu"

.PHONY: soak
soak: $(VENV)/.has-test ## Let clients and faults of all manners loose for SOAK_SECONDS (600), and tell what is left
	python -m tests.soak

.PHONY: fuzz
fuzz: $(VENV)/.has-dev ## Feed hostile bytes to every decoder and service, for FUZZ_SECONDS (600)
	python -m tests.fuzz

.PHONY: bench
bench: $(VENV)/.has-test ## Measure speed (best on an idle machine)
	python -m tests.bench

.PHONY: certs
certs: $(VENV)/.has-test ## Write certificates for development into certs/ (NAMES="host ..." for more than localhost)
	python -m deploy.certs certs $(NAMES)

.PHONY: gpu-pack
gpu-pack: ## Pack what a GPU machine without a network lacks, into .gpu (see docs/gpu.md)
	bash deploy/gpu/pack.sh .gpu

.PHONY: check
check: lint types imports protos-check ## Check format, lint, types, import rules and protos

.PHONY: lint
lint: $(VENV)/.has-dev ## Check format and lint
	ruff format --check --quiet
	ruff check --quiet

.PHONY: types
types: $(VENV)/.has-dev ## Check types
	mypy

.PHONY: imports
imports: $(VENV)/.has-dev ## Check who imports whom
	lint-imports --no-logo

.PHONY: protos-check
protos-check: $(VENV)/.has-dev ## Lint the protos and check that the generated code is theirs
	buf lint
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PROTOC) --python_out="$$fresh" --grpc_python_out="$$fresh" --mypy_out=quiet:"$$fresh" --mypy_grpc_out=quiet:"$$fresh"; \
	diff -r -x __init__.py -x __pycache__ "$$fresh/chunkmesh/v1" chunkmesh/v1 \
		|| { echo "chunkmesh/v1 is not what the protos say: run make protos" >&2; exit 1; }

.PHONY: protos
protos: $(VENV)/.has-dev ## Generate chunkmesh/v1 from the protos
	$(PROTOC) --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:.

.PHONY: format
format: $(VENV)/.has-dev ## Format the code and mend what lint can mend
	ruff format
	ruff check --fix

.PHONY: venv
venv: $(VENV)/.has-dev ## Make the virtual environment with everything for development

.PHONY: clean
clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# One stamp an extra: demo is in test, and test is in dev.
$(VENV)/.has-%: pyproject.toml $(VENV)/constraints.txt
	python -m pip install --quiet --no-build-isolation -c $(VENV)/constraints.txt -e '.[$*]'
	@touch $@ $(if $(filter dev,$*),$(VENV)/.has-test) $(if $(filter dev test,$*),$(VENV)/.has-demo)

# With an NVIDIA driver torch is not pinned, for its CUDA builds have versions of their own.
# Build requirements are not held by constraints, so they are installed first.
$(VENV)/constraints.txt: $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "ChunkMesh needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "This Python cannot make virtual environments: install its venv package (python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then grep -v '^torch==' $(PINS); else cat $(PINS); fi > $@.new
	@echo "Installing ChunkMesh's packages into $(VENV); the first time takes some minutes"
	python -m pip install --quiet -c $@.new hatchling editables setuptools wheel
	@mv $@.new $@
