# `make demo` and `make test` need only Python 3.11+, git and make: they create the environment in .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WHEEL := .build/wheel

.PHONY: install demo test lint types unit notebook clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@start=$$(date +%s); \
	echo "Installing into $(VENV) ..."; \
	$(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' && \
	touch $@ && \
	echo "Installation took $$(( $$(date +%s) - start )) s."

demo: $(INSTALLED)
	$(BIN)/mrp-hf demo

test: $(INSTALLED)
	@start=$$(date +%s); \
	$(MAKE) --no-print-directory lint types unit; status=$$?; \
	echo "Checks and tests took $$(( $$(date +%s) - start )) s."; \
	exit $$status

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# The wheel is unpacked into a folder of its own and checked there; build/ is removed first because setuptools reuses it.
types: $(INSTALLED)
	rm -rf build $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL)/dist .
	$(BIN)/python -m pip install --quiet --no-deps --target $(WHEEL)/site $(WHEEL)/dist/*.whl
	cd $(WHEEL)/site && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/.mypy_cache -p mrp_hf

unit: $(INSTALLED)
	$(BIN)/python -m pytest

# Runs the notebook and keeps its outputs.
notebook: $(INSTALLED)
	$(BIN)/jupyter execute --inplace notebooks/quickstart.ipynb

clean:
	rm -rf $(VENV) .build build *.egg-info .mypy_cache .pytest_cache .ruff_cache
