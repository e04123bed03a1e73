# Every task of this repository. `make` prints the list.
#
# Everything is installed under this checkout (.venv*, .cache/) and nothing needs root. A step that
# was done is not done again: each set-up script compares a stamp with the hash of what it reads.
# For a part of the tests: PYTEST_ADDOPTS="-k freeze" make test

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
export PYTHON
BIN := .venv/bin
BENCH_SIZES ?= 10000,1000000,5000000

.PHONY: help setup run test test-all ready ready-all fast lint fmt types imports \
	prometheus pgbouncer kubectl sglang-env sglang-env-all gate mutants bench-decide bench-log bench-size \
	bench-launch hammer walk search ci clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Show smgate at work on a simulated fleet until Ctrl-C (ONCE=1: end by itself)
	@sh ops/dev/venv.sh .venv-run controller,agent
	@.venv-run/bin/python -m smgate.sim.demo $(if $(ONCE),--once)

test: ## Install all that the tests need, check the code, run every test
	@$(MAKE) --no-print-directory -j4 ready
	@sh ops/dev/pytest.sh

test-all: ## The same, with the older SGLang 0.5.18 as well
	@$(MAKE) --no-print-directory -j4 ready-all
	@SMGATE_TEST_ALL=1 sh ops/dev/pytest.sh

fast: setup ## The tests that need no server: unit, property, tidy
	@$(BIN)/python -m pytest tests/unit tests/property tests/tidy

setup: ## The test environment .venv (tests, linters, no torch)
	@sh ops/dev/venv.sh .venv controller,postgres,agent,test,dev

lint: setup ## Ruff: rules and format
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

fmt: setup ## Format the code and mend what ruff can mend
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

types: setup ## Mypy, strict
	@$(BIN)/mypy --no-error-summary

imports: setup ## The layers, by import-linter
	@$(BIN)/lint-imports --no-logo >.cache/imports.log 2>&1 || { cat .cache/imports.log; exit 1; }

gate: setup ## The launch gate as one file
	@$(BIN)/python ops/dev/build_gate.py

prometheus: ## A real Prometheus, unpacked under .cache/ (or the system's own)
	@sh ops/dev/debian.sh prometheus >/dev/null

pgbouncer: ## A real PgBouncer, as Prometheus
	@sh ops/dev/debian.sh pgbouncer >/dev/null

kubectl: setup ## A kubectl that renders kustomizations, unpacked under .cache/ (or the system's)
	@PYTHON=$(BIN)/python sh ops/dev/kubectl.sh >/dev/null

sglang-env: ## SGLang 0.5.23 on CPU torch, for the tests marked sglang
	@sh ops/dev/sglang_env.sh 0.5.23

sglang-env-all: sglang-env
	@sh ops/dev/sglang_env.sh 0.5.18

ready: lint types imports gate prometheus pgbouncer kubectl sglang-env

ready-all: ready sglang-env-all

mutants: setup ## Break the code line by line: every listed mutant must be killed by its test
	@PYTHONPATH=. $(BIN)/python -m tests.mutants.run

bench-decide: setup ## What deciding costs, as JSON lines (BENCH_NODES=1000,10000)
	@PYTHONPATH=. $(BIN)/python -m tests.bench.decide

bench-log: ## What the log writes and reads beside the eventsourcing library, as JSON lines (BENCH_SCALE=0.1)
	@sh ops/dev/venv.sh .venv-bench controller,postgres,test,bench
	@PYTHONPATH=. .venv-bench/bin/python -m tests.bench.log

bench-size: ## What logs of 10,000 to 5,000,000 facts cost, as JSON lines
	@sh ops/dev/venv.sh .venv-bench controller,postgres,test,bench
	@PYTHONPATH=. .venv-bench/bin/python -m tests.bench.log_size \
		--sizes $(BENCH_SIZES)

bench-launch: setup ## What the launch gate adds to a start, as JSON lines (BENCH_RUNS=15)
	@PYTHONPATH=. $(BIN)/python -m tests.bench.launch

hammer: ## Writers and readers of the log killed again and again, and a judge (HAMMER_S=600)
	@sh ops/dev/venv.sh .venv-bench controller,postgres,test,bench
	@PYTHONPATH=. .venv-bench/bin/python -m tests.hammer.run sqlite postgres \
		--seconds $(or $(HAMMER_S),600)

walk: setup ## Play fleets seed after seed until an invariant breaks (SEED=1 NODES=40 DAYS=30)
	@mkdir -p .cache; seed=$(or $(SEED),1); while $(BIN)/smgate simulate fleet --seed $$seed --quiet \
		--nodes $(or $(NODES),40) --days $(or $(DAYS),30) >.cache/walk.txt; \
		do echo "seed $$seed: $$(grep ' checks of ' .cache/walk.txt)"; seed=$$((seed + 1)); done; \
		echo "seed $$seed:"; grep VIOLATED .cache/walk.txt

search: setup ## Random histories that the suite does not take, again and again until one fails
	@while $(BIN)/python -m pytest -q tests/property --hypothesis-profile=search --timeout=900; \
		do :; done

ci: ## What CI runs
	@bash .ci/run

clean: ## Remove all that make installed, built or cached
	rm -rf .venv .venv-* .cache .demo .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis build dist
	find controller agents migrations tests ops -name __pycache__ -type d -prune -exec rm -rf {} +
