# One word per chore; CI and the README use the same words.
#   make train        set up, then train MonoBeast on Pong; again: go on where it stopped
#   make test         set up, then run the whole test suite
#   make minatar      set up, then train MonoBeast on MinAtar Breakout
#   make bench        the benchmarks: one JSON line each
#   make lint format  check or mend the style
# FLAGS="--name value ..." goes to the program.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
FLAGS ?=

.PHONY: train minatar test bench lint format setup clean

train: .venv/runtime
	$(BIN)/python -m monobeast --xpid pong $(FLAGS)

minatar: .venv/development
	$(BIN)/python -m monobeast --xpid minatar-breakout --env MinAtar/Breakout-v1 $(FLAGS)

test: .venv/development
	$(BIN)/python -m pytest $(FLAGS)

bench: .venv/development
	$(BIN)/python -m benchmarks.monobeast --task pong
	$(BIN)/python -m benchmarks.monobeast --task minatar

lint: .venv/development
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: .venv/development
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

setup: .venv/runtime

.venv/runtime: requirements.txt
	@bash .ci/venv $(PYTHON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/development: requirements-dev.txt .venv/runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache
