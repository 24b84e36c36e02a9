# `make demo` and `make test` need Python 3.11 or newer, make, git and pip, and nothing else:
# each creates the environment in .venv first, and again when its inputs have changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt
DEMO_READY := $(VENV)/.demo
DEV_READY := $(VENV)/.dev
SEEDS ?= 2000
WORKERS ?= 4
FIRST ?= 1
FUZZ_S ?= 60
EVERY ?= 12
OFFSET ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint types bench bench-quick bounds frameworks frameworks-whole mutants mutants-tenth mutants-generated java spec spec-large generate simulate fuzz crash-matrix slurm-packages slurm-matrix launchers view-tools docs release-check release-quick clean

help:  ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(DEMO_READY)  ## the whole story on this machine: notice, save, leave, resume
	$(BIN)/drainfsm demo $(DEMO_ARGS)

test: $(DEV_READY)  ## every test, on WORKERS processes: most of them wait most of the time
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

check: slurm-packages java view-tools launchers lint types docs release-quick test bounds frameworks simulate spec mutants-tenth bench-quick  ## everything that CI runs, in the order of what fails fastest

lint: $(DEV_READY)  ## formatting, code rules, import contracts, dead code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture

types: $(DEV_READY)  ## mypy, strict
	$(BIN)/mypy

bench: $(DEV_READY)  ## every benchmark beside its peers (about 25 minutes when idle); BENCH=NAME: a single one
	$(BIN)/python -m bench $(BENCH)

bench-quick: $(DEV_READY)  ## the subset that CI runs; fails when a ratio leaves its gate (about half a minute)
	$(BIN)/python -m bench --quick $(BENCH)

spec: $(DEV_READY) java  ## check the models in specs/ exhaustively, then every mutation of them (about 4 minutes)
	$(BIN)/python specs/generate.py --check
	$(BIN)/python specs/check.py

spec-large: $(DEV_READY) java  ## the models with larger bounds (about a quarter of an hour on two cores)
	$(BIN)/python specs/check.py --large

generate: $(DEV_READY)  ## write the schemas and diagrams in specs/ anew, from the code
	$(BIN)/python specs/generate.py

java:  ## install Java for the model checker (apt, as root; else the model checks are left out)
	specs/install-java

simulate: $(DEV_READY)  ## SEEDS worlds that misbehave, from FIRST on (2000: two minutes); a soak is more of them
	$(BIN)/python -m drainfsm_kit.simulator --seeds $(SEEDS) --first $(FIRST)

fuzz: $(DEV_READY)  ## odd bytes for every decoder of foreign bytes, FUZZ_S seconds each (60: half an hour)
	$(BIN)/python -m drainfsm_kit.decoders --corpus tests/corpus --seconds $(FUZZ_S)

bounds: $(DEV_READY)  ## the lowest versions that pyproject.toml admits, and other Pythons where they are installed (some minutes)
	$(BIN)/python tests/bounds/run.py --workers $(WORKERS)

frameworks: $(DEV_READY)  ## install the training frameworks, and run one scenario of each with them (two or three minutes)
	$(BIN)/python tests/frameworks/run.py

frameworks-whole: $(DEV_READY)  ## every scenario of every framework, with its newest and its lowest versions (about an hour)
	$(BIN)/python tests/frameworks/run.py --whole

mutants: $(DEV_READY)  ## break the code on purpose, once for each fault: do the tests notice? (about 15 minutes)
	$(BIN)/python tests/mutants/run.py

mutants-tenth: $(DEV_READY)  ## a tenth of these faults, another one each day: what CI runs (a minute or two)
	$(BIN)/python tests/mutants/run.py --tenth $$(date +%j)

mutants-generated: $(DEV_READY)  ## every EVERY-th mutant that a tool makes of core, commit log and journal, from OFFSET on (12: some ten minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,mutants]'
	$(BIN)/python tests/mutants/generated.py --every $(EVERY) --first $(OFFSET)

crash-matrix: $(DEV_READY)  ## kill writer, coordinator or job at every point of a drain (about 20 minutes)
	$(BIN)/python -m drainfsm_kit.crash_matrix --store posix
	$(BIN)/python -m drainfsm_kit.crash_matrix --store s3

release-check: $(DEV_READY)  ## wheel and sdist as they would be released: contents, an empty environment for each Python, a bill of materials, in dist
	$(BIN)/python -m drainfsm_kit.release $(RELEASE_ARGS)

release-quick: $(DEV_READY)  ## the same, built once and tried with one Python: what CI runs
	$(BIN)/python -m drainfsm_kit.release --quick

docs: $(DEV_READY)  ## the documentation as a site, in build/site; fails on a link that leads nowhere
	$(BIN)/python -m drainfsm_kit.site $(DOCS_ARGS)

view-tools:  ## install promtool and Chromium for the tests of the views (apt, as root; else they are left out)
	tests/install-view-tools

launchers:  ## install two MPIs for the tests of launchers (apt, as root; else they are left out)
	tests/install-launchers

slurm-packages:  ## install Slurm for the tests that need a cluster (apt, as root; else they are left out)
	tests/slurm/install-slurm

slurm-matrix: $(DEV_READY)  ## every way in which Slurm ends a job, and 20 drains in a row: the table of docs/slurm.md (about 15 minutes)
	$(BIN)/python tests/slurm/matrix.py $(MATRIX_ARGS)

clean:  ## remove the environment and every cache
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist

$(DEMO_READY): $(INPUTS)
	$(call install,demo)

$(DEV_READY): $(INPUTS)
	$(call install,dev)

# $(call install,EXTRA): the environment, with the package in place of a copy, stamped when whole.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing drainfsm[$(1)] into $(VENV); the first time this takes some minutes"
	@$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --constraint constraints.txt --editable '.[$(1)]'
	@touch $@
endef
