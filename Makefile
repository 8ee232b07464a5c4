# Two commands do everything on a fresh clone: `make demo` and `make test`.
# PYTHON, VENV, PIP_FLAGS and CONSTRAINTS can be set: `make test PYTHON=python3.12 VENV=/tmp/venv PIP_FLAGS="--index-url ..."`.
PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
WORKERS ?= 2
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# Bytecode is kept, also where the environment says otherwise: the tests start some hundred processes that import dpbo.
export PYTHONDONTWRITEBYTECODE :=
# What BoTorch compiles at first use; beside the clone's other output, so that no lock of another, killed process is waited for.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/build/torch_extensions

.PHONY: demo quick test tests matrix coverage pages audit mutants gpu wheels lint types docs notebooks pictures dist dist-check clean

demo: $(STAMP)
	$(BIN)/python -m dpbo

# Ruff, mypy and the unit tests of what differs from HEAD, in under a minute.
quick: lint
	$(BIN)/python -m tools.quick

# Every test once, but for the deep ones. Two workers; of one hash seed, so that both collect the tests in one order.
# Plugins by name, or pytest would rewrite the assertions of every module of the packages that have one, anyio among them.
PLUGINS := -p dpbo -p hypothesispytest -p pytest_cov -p timeout -p xdist
PYTEST := PYTHONHASHSEED=0 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest $(PLUGINS) -n $(WORKERS) --dist worksteal -q --attacks --durations=25
test: lint
	$(MAKE) --no-print-directory -j 2 --output-sync=target types tests

tests: $(STAMP)
	$(PYTEST) $(TESTS)

# Every test once with the lowest, the pinned and the newest versions, on each Python that is found; writes CONTRIBUTING's table.
matrix: $(STAMP)
	$(BIN)/python -m tools.matrix $(MATRIX)

# Every test with the line coverage of dpbo, which takes a third longer.
coverage: $(STAMP)
	$(PYTEST) --cov=dpbo --cov-report=
	$(BIN)/python -m coverage report --format=total --precision=1 | sed 's/.*/line coverage of dpbo: & %/'

# The longest programs of the documentation, and its build, as CI does after `make test`.
pages: $(STAMP)
	$(PYTEST) -m deep tests/programs/test_readme.py

# The deep tests alone: long statistics, audits of whole runs, killed processes in number.
audit: $(STAMP)
	$(PYTEST) -m deep

# Sabotages of the package, each of which its test must catch. SOME=12: a dozen that depend on the commit.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(if $(SOME),--some $(SOME))

# Where there is a GPU: what needs one, then benchmarks.gpu, with results in GPU_RESULTS. Nothing is installed: PYTHON, by default that of
# VENV where there is one, has a CUDA build of torch. GPU_TESTS, GPU_BENCHMARKS: seconds at most. WITHOUT_GPU=1 only shows that all starts.
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))
GPU_RESULTS ?= $(or $(OUT),build/gpu)
GPU_TESTS ?= 200
GPU_BENCHMARKS ?= 330
gpu:
	$(GPU_PYTHON) -m tools.gpu --results $(GPU_RESULTS) --tests $(GPU_TESTS) --benchmarks $(GPU_BENCHMARKS) \
		$(if $(WHEELS),--wheels $(WHEELS)) $(if $(WITHOUT_GPU),--without-gpu)

# Into WHEELS, for `make gpu WHEELS=...` where pip has no index: what a Python with torch, BoTorch and scikit-learn lacks. FOR: its version.
FOR ?= 3.12
wheels:
	$(PYTHON) -m pip download $(PIP_FLAGS) -q --no-deps --only-binary=:all: --implementation cp --python-version $(FOR) \
		--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -c $(CONSTRAINTS) -d $(or $(WHEELS),build/wheels) \
		SQLAlchemy opacus opt_einsum lazy-loader tqdm packaging hypothesis sortedcontainers pytest-timeout

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Into docs/_build/html; a warning fails.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/trees docs docs/_build/html

# notebooks/*.ipynb from the .py beside them, with outputs and pictures; SOME="quickstart": of these alone. Three minutes in all.
notebooks: $(STAMP)
	$(BIN)/python -m tools.notebooks $(SOME)

pictures: $(STAMP)
	$(BIN)/python -m tools.pictures

# The source distribution, the wheel that is built from it, and what the package index would say of both.
RELEASE := build/release/bin
dist:
	rm -rf dist
	test -x $(RELEASE)/python || $(PYTHON) -m venv build/release
	$(RELEASE)/python -m pip install $(PIP_FLAGS) -q build twine "readme_renderer[md]"
	$(RELEASE)/python -m build --outdir dist .
	$(RELEASE)/python -m twine check --strict dist/*

# The wheel in empty environments, with the core dependencies and with each extra alone:
# `make dist-check DIST_CHECK="--python python3.11 --python python3.13 --uv uv"`.
dist-check: dist
	$(RELEASE)/python tools/dist_check.py $(DIST_CHECK)

# The stamp is written last, so a failed install is tried again. torch goes first: a range would take the newest build with CUDA.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	rm -f $(STAMP)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -q $(CONSTRAINTS:%=-c %) torch
	$(BIN)/python -m pip install $(PIP_FLAGS) -q $(CONSTRAINTS:%=-c %) -e ".[test]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist docs/_build docs/api docs/tutorials docs/form.md *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
