# Everything a fresh machine needs is Python 3.11 (or newer) and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := loadgen tests benchmarks fuzz docs

.PHONY: setup demo test test-long test-ray fuzz fuzz-streams fuzz-faults fuzz-engine docs soak packages lock audit check format bench bench-peers-install bench-peers clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "loadgen needs Python 3.11 or newer; set PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# A whole sweep with an SLO against the embedded simulated server, in about a minute.
demo: setup
	$(BIN)/loadgen sweep --simulate --demo

test: setup
	$(BIN)/python -m pytest -n 4 --dist worksteal

# The same with five times as many examples, other ones each time, and with every variant of what the tests above try
# some of. A quarter of an hour.
test-long: setup
	LOADGEN_THOROUGH=5 LOADGEN_FUZZ_STREAMS=5000 LOADGEN_FUZZ_FAULTS=500 LOADGEN_FUZZ_ENGINE=300 \
		$(BIN)/python -m pytest -n 4 --dist worksteal

# `--ray` on a real cluster of three nodes on this machine. Four minutes, 1 GB of memory.
test-ray: setup
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]'
	LOADGEN_RAY=1 $(BIN)/python -m pytest tests/ray tests/client/test_ray_fleet.py tests/client/test_remote.py tests/client/test_offset.py

# The random streams, fault scripts and engines of the tests, many more of them. Minutes.
fuzz-streams: setup
	LOADGEN_FUZZ_STREAMS=20000 $(BIN)/python -m pytest -n 2 --dist worksteal tests/client/test_legal_streams.py

fuzz-faults: setup
	LOADGEN_FUZZ_FAULTS=2000 $(BIN)/python -m pytest -n 2 --dist worksteal tests/client/test_fault_scripts.py

fuzz-engine: setup
	LOADGEN_FUZZ_ENGINE=3000 $(BIN)/python -m pytest -n 2 --dist worksteal tests/simulator/engine

# Every reader of what others wrote, under atheris and under blind mutation, SECONDS each (eight of them).
SECONDS ?= 30
fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]' \
		|| echo "atheris does not install on this Python: inputs are mutated blindly"
	$(BIN)/python -m fuzz.run --seconds $(SECONDS)

# The documentation as a site of plain files: open site/index.html.
docs: setup
	$(BIN)/python docs/build.py site

# A long load at many streams, then kills at random moments. MINUTES=1 STREAMS=200 KILLS=5 to try it.
MINUTES ?= 30
STREAMS ?= 1000
KILLS ?= 200
soak: setup
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --streams $(STREAMS)
	$(BIN)/python -m benchmarks.soak --kills $(KILLS)

# Wheel and sdist, built twice and compared, installed alone and tried. Minutes; needs PyPI.
packages: setup
	$(BIN)/python -m benchmarks.packages

# The versions of the core dependencies with their hashes; and what is known against them (needs pypi.org itself).
lock: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --universal --generate-hashes --python-version 3.11 --quiet pyproject.toml -o requirements.lock

audit: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit -r requirements.lock --disable-pip --require-hashes --strict

check: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_packaging.py
	@if $(BIN)/python -c 'import urllib.request as u; u.urlopen("https://pypi.org/pypi/click/8.1.7/json", timeout=5)' 2>/dev/null; \
		then $(MAKE) --no-print-directory audit; else echo "not audited: what pypi.org knows against the locked versions cannot be asked from here"; fi

format: setup
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# This client beside plain httpx and aiohttp, on a server whose every send time is known (needs a C compiler). A quarter
# of an hour.
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.peers.run --own --rounds 2 --waves 4
	$(BIN)/python -m benchmarks.accuracy --streams 16 --rounds 1

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

# The released peers, each in an environment of its own outside the project, and the same comparison with them: 25 minutes a round.
bench-peers-install:
	benchmarks/peers/install.sh

bench-peers: $(VENV)/.bench
	$(BIN)/python -m benchmarks.peers.run --write benchmarks/RESULTS.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis dist site
