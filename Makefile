# SPDX-License-Identifier: MIT
# `make help` lists the targets.  Each makes .venv unless a virtual environment is active, installs
# what is missing and builds what has changed before it does its own work.

PYTHON ?= python3
TORCH ?= torch==2.13.0
DEMO_ARGS ?=
BENCH_ARGS ?=
REPRODUCE_ARGS ?=
TEST_ARGS ?=

VENV := $(or $(VIRTUAL_ENV),.venv)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

C_FILES := $(wildcard csrc/*.c csrc/cpu/*.c)
CUDA_FILES := $(wildcard csrc/cuda/*.cu)
CUDA_HEADERS := $(wildcard csrc/*.h csrc/cpu/half.h csrc/cpu/owed.h csrc/cuda/*.h csrc/cuda/*.cuh)
SOURCES := $(C_FILES) $(wildcard csrc/*.h csrc/*/*.h csrc/*/*.cpp csrc/torch/cuda/*)
OTHER_C_FILES := $(wildcard tests/c/*.c tests/c/*.h tests/cuda/*.[ch] tests/cuda/emulator/* \
                            benchmarks/*.c)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help build test test-fast pytest lint compile cuda sanitize demo bench reproduce dist clean
.PHONY: FORCE

help:
	@echo 'make build      the package, in place'
	@echo 'make demo       trains a language model with and without s2reducer (DEMO_ARGS=...)'
	@echo 'make test       everything: lint, compile, cuda, sanitize, pytest (TEST_ARGS=...)'
	@echo 'make test-fast  the tests for daily work'
	@echo 'make lint       ruff, mypy, clang-format'
	@echo 'make compile    the C core with gcc and clang and all warnings, without any build system'
	@echo 'make cuda       the CUDA kernels with nvcc and all warnings, for all architectures, and'
	@echo '                their tests for a device, which it does not run'
	@echo 'make sanitize   the C tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make bench      kernels beside a plain read and plain copies (BENCH_ARGS=...)'
	@echo 'make reproduce  accuracy, bytes and step times of every method, in half an hour;'
	@echo '                QUICK=1 takes minutes, FULL=1 hours; goes on where it was interrupted'
	@echo 'make dist       sdist and wheel, in dist/'
	@echo 'make clean      removes what was built, but not .venv'
	@echo
	@echo 'PYTHON=$(PYTHON) makes .venv; TORCH="$(TORCH)" is what pip then installs, and may be a path'
	@echo 'or carry options; pip takes its index from its own settings, as always.'

# ------------------------------------------------------------------------------------------------
# Environment and build
# ------------------------------------------------------------------------------------------------

# TOOLS lies in the environment and BUILT in the tree, so that either may be thrown away alone.
# What they were made for is remembered in a file each, which is rewritten only when it changes.
TOOLS := $(VENV)/.s2reducer-tools
BUILT := build/.built

# An active environment keeps the torch that it has, unless TORCH was given.
ifneq ($(VIRTUAL_ENV),)
ifeq ($(origin TORCH),file)
UNLESS_INSTALLED := $(PY) -c 'import torch' 2>/dev/null ||
endif
endif

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit( \
	    f"s2reducer needs Python 3.10 or newer, but $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(TOOLS)-for: FORCE | $(VENV)/bin/python
	@echo '$(CURDIR) $(TORCH)' | cmp -s - $@ || echo '$(CURDIR) $(TORCH)' > $@

$(BUILT)-for: FORCE
	@mkdir -p $(@D)
	@echo '$(VENV) $(S2_CUDA)' | cmp -s - $@ || echo '$(VENV) $(S2_CUDA)' > $@

$(TOOLS): pyproject.toml $(TOOLS)-for
	$(UNLESS_INSTALLED) $(PIP) install $(TORCH)
	$(PIP) install 'setuptools>=77'
	@touch $@

$(BUILT): setup.py $(SOURCES) $(CUDA_FILES) $(CUDA_HEADERS) $(TOOLS) $(BUILT)-for
	@echo 'Building s2reducer and installing what its tests and demo need ...'
	@$(PIP) install --quiet --no-build-isolation --editable '.[dev]'
	@$(PY) -c 'from s2reducer import cuda, _C as c; info = c.build_info(); print( \
	    "Built s2reducer", info["version"], "with", info["compiler"], "and torch", \
	    info["torch_built_with"] + "; CPU kernels:", ", ".join(c.cpu_variants()) + \
	    "; CUDA kernels:", cuda.missing() or "built")'
	@touch $@

build: $(BUILT)

# ------------------------------------------------------------------------------------------------
# Tests
# ------------------------------------------------------------------------------------------------

# pytest comes last, so that its summary is the last thing to be seen.
test: lint compile cuda sanitize pytest

pytest: $(BUILT)
	$(PY) -m pytest $(TEST_ARGS)

test-fast: $(BUILT)
	$(PY) -m pytest -m 'not slow' $(TEST_ARGS)

lint: $(BUILT)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict s2reducer
	$(VENV)/bin/clang-format --dry-run -Werror $(SOURCES) $(OTHER_C_FILES) $(CUDA_FILES) \
	    $(filter %.cuh,$(CUDA_HEADERS))

compile: compile-gcc compile-clang

# A compiler that is not there is left out, but never where CI is set: there it would go unnoticed.
compile-%:
	@mkdir -p build
	@if command -v $* >/dev/null; then \
	    set -x; \
	    $* -std=c99 -O2 -Wall -Wextra -Wpedantic -Wconversion -Werror -fPIC -shared \
	        -Icsrc -o build/s2core-$*.so $(C_FILES); \
	else \
	    echo 'Left out: the core compiled with $*, which is not installed' \
	         '(on Debian: apt install $*).' >&2; \
	    test -z "$$CI"; \
	fi

include csrc/cuda/nvcc.mk

# A machine without nvcc has no use for them, and the emulator's tests none for nvcc.
cuda:
	@if command -v $(NVCC) >/dev/null; then \
	    $(MAKE) --no-print-directory build/cuda/.compiled && \
	    $(MAKE) --no-print-directory --silent -C tests/cuda device KERNELS=../../build/cuda; \
	else \
	    echo 'Left out: the CUDA kernels, since nvcc is not installed.' >&2; \
	fi

build/cuda/.compiled: $(CUDA_FILES) $(CUDA_HEADERS) $(wildcard csrc/cuda/nvcc*)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_ARCHS) -odir $(@D) -c $(CUDA_FILES)
	@touch $@

sanitize: | $(VENV)/bin/python
	$(MAKE) -C tests/c run SANITIZE=1

# ------------------------------------------------------------------------------------------------
# The rest
# ------------------------------------------------------------------------------------------------

demo: $(BUILT)
	$(PY) -m s2reducer demo $(DEMO_ARGS)

bench: $(BUILT)
	$(PY) benchmarks/bench_kernels.py $(BENCH_ARGS)

reproduce: $(BUILT)
	$(PY) benchmarks/reproduce.py $(if $(FULL),--full,$(if $(QUICK),--quick)) $(REPRODUCE_ARGS)

dist: $(BUILT)
	$(PY) -m build --no-isolation

clean:
	rm -rf build dist *.egg-info s2reducer/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	$(MAKE) -C tests/c clean
	$(MAKE) -C tests/cuda clean
