# Each target makes what it needs. `make demo` and `make test` want Python >= 3.11 and pip, nothing else.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
PYTHONS ?= 3.12 3.13
# Tests start hundreds of processes: each module is compiled once for all of them, when it is first imported.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# Tests commit and sync thousands of times. That takes no time in memory, where the machine has 4 GB for it.
IN_MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "TMPDIR=/dev/shm" }')
# A test that hangs says where, and fails.
NO_HANG := -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true

.PHONY: demo test nightly test-system test-pythons look-pythons lint audit bench experiments peers docs reference vectors clean

demo: .venv/demo.stamp ## a whole study between five processes on this machine
	$(BIN)/dpdpca demo

test: .venv/tests.stamp ## all tests but those of test-system; pip is all they need
	$(IN_MEMORY) $(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder --durations 25 -m "not system and not nightly" $(NO_HANG)

nightly: .venv/dev.stamp ## crashes, simulation and statistics at length, mutants of the core: some three hours on two cores
	$(IN_MEMORY) $(BIN)/pytest -n 2 -m nightly

test-system: .venv/dev.stamp ## crashes, statistics, federations of real processes; .ci/run installs what they need
	$(IN_MEMORY) $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 25 -m "system and not nightly" $(NO_HANG)

test-pythons: ## nightly: the fast tests on PYTHONS, versions or paths; names those that this machine lacks
	.ci/pythons suite $(PYTHONS)

look-pythons: ## PYTHONS again: a fresh environment from the lock, all imports, all help, one study
	.ci/pythons look $(PYTHONS)

bench: .venv/dev.stamp ## each phase beside its floor and beside phe: half a minute on one core
	$(BIN)/python -m dpdpca_lab.benchmarks.growth short

peers: .venv-peers-diffprivlib/stamp .venv-peers-opendp/stamp ## the libraries that experiments compare with, each in an environment of its own

experiments: .venv/lab.stamp peers ## the experiments of papers and peers in full, into docs/papers; then `make reference` writes their page
	$(BIN)/dpdpca experiments run papers peers --out build/experiments
	mkdir -p docs/papers
	cp build/experiments/*.csv build/experiments/*.json build/experiments/*.svg docs/papers/

lint: .venv/dev.stamp ## format, rules, types, and which package may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

audit: .venv-audit/stamp ## known vulnerabilities of what is locked; says so where it cannot ask
	.venv-audit/bin/python requirements/audit.py

docs: .venv-docs/stamp ## the documentation as a site in build/site; a link that leads nowhere fails
	.venv-docs/bin/zensical build --clean --strict

reference: .venv/dev.stamp ## the reference pages of the documentation, written anew from the code
	PYTHONPATH=docs $(BIN)/python -m reference_pages

vectors: .venv/dev.stamp ## written anew, byte for byte the same
	$(BIN)/python tests/vectors/generate.py

clean:
	rm -rf .venv .venv-audit .venv-docs .venv-generated-client .venv-peers-diffprivlib .venv-peers-opendp .venv-pythons .cache build demo-report.html

# Six workers at once would each compile all tests. Here, two processes share this work before they start.
.venv/tests.stamp: .venv/dev.stamp $(shell find tests -name '*.py')
	@find tests -name 'test_*.py' | xargs -P 2 -n 180 $(BIN)/pytest -qq --collect-only > /dev/null 2>&1 || true
	touch $@

# The lock is installed with its hashes, then the project itself without looking for anything more.
.venv/%.stamp: requirements/%.txt pyproject.toml | .venv/bin/python
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r $<
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# The auditor and the generators of documentation and clients have environments of their own.
.venv-%/stamp: requirements/%.txt
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP_INSTALL) --require-hashes -r $<
	touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
