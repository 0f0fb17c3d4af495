PYTHON ?= python3
BIN := .venv/bin
SPREAD := -n auto --maxprocesses 4

.PHONY: demo test slow lint bench clean

# The stamp is newer than pyproject.toml once everything that it names is installed.
.venv/stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,plot,lint]'
	touch .venv/stamp

demo: .venv/stamp
	@for name in drift attention rebinding capacity; do \
	  $(BIN)/engine run $$name -o runs/$$name.zarr --force && \
	  $(BIN)/engine report runs/$$name.zarr -o runs/$$name && echo || exit 1; \
	done

test: .venv/stamp
	$(BIN)/python -m pytest -m "not slow" $(SPREAD) --dist loadfile

# The same laws as in `make test`, over more cases.
slow: .venv/stamp
	$(BIN)/python -m pytest -m slow $(SPREAD)

lint: .venv/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the engine is compared with is large: only this target installs it, and it may be missing.
bench: .venv/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' || true
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf .venv runs build *.egg-info
