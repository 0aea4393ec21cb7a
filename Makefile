# Targets that run Python first install what they need in .venv. CI uses the same targets.
# FLAGS="--name value ..." is passed on to the program.
#   make play           play a game of Pong with a published agent, and write a video of it;
#                       GAME=breakout, asterix or hopper: another of results/agents
#   make train          train MonoBeast on Pong; run it again to resume
#   make poly           build the extension and train PolyBeast on Pong
#   make minatar        train MonoBeast on MinAtar Breakout
#   make test           run the test suite
#   make test-examples  run the tests of the examples
#   make results-quick  repeat the smallest published result and plot both, in two minutes
#   make results-pong, results-poly-pong  train MonoBeast on Pong with three seeds, PolyBeast with one
#   make results-atari, results-atari-GAME  train MonoBeast on five more Atari games, or on one of
#                       them; in results-atari-Freeway actions may last (examples/options)
#   make results-minatar  train MonoBeast on five games of MinAtar with three seeds
#   make results-minatar-20M  the same for 20M steps instead of 5M
#   make results-minatar-GAME, results-poly-GAME  train either beast on one of them
#   make results-memory  train on a task that needs memory, with and without an LSTM, three seeds
#   make results-memory-long, results-r2d2-memory  train MonoBeast or R2D2 on longer memory games
#   make results-r2d2-minatar  train R2D2 on five games of MinAtar
#   make results-mujoco, results-poly-mujoco  train either beast on four robots, three seeds each
#   make results-mujoco-ROBOT, results-poly-mujoco-ROBOT  train either beast on one of them
#   make bench          measure the speed of the parts and of whole runs
#   make mutants        count which small changes of the modules the tests notice; takes hours
#   make faults         test in full, for hours, what happens after faults; writes results/faults
#   make soak           train for an hour under random faults; writes results/soak
#   make gpu            verify and measure everything on a GPU in twelve minutes; writes results/gpu;
#                       needs no network and no .venv; PYTHON=python3 needs torch 2.11
#   make tsan, asan     run the C++ core's tests under ThreadSanitizer, AddressSanitizer and UBSan
#   make fuzz           fuzz the C++ decoder of servers' messages with libFuzzer for ten minutes
#   make fork-diff      print what a fork has changed outside the marked places since its last common
#                       commit with BASE (default: origin/main), where merges may conflict
#   make docs           write docs/flags.md from the code
#   make lint           check the style and the types
#   make format         correct the style
#   make setup, build   install MonoBeast's packages, or also build PolyBeast's extension
#   make clean          remove everything that was installed and built here

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
FLAGS ?=

.PHONY: play train poly minatar results-quick results-pong results-poly-pong results-atari results-minatar results-minatar-20M \
	results-memory results-memory-long results-r2d2-minatar results-r2d2-memory results-mujoco results-poly-mujoco \
	test test-examples bench mutants faults soak gpu tsan asan fuzz fork-diff lint format docs \
	setup build clean

GAME := pong

play: $(if $(filter pong breakout,$(GAME)),.venv/runtime,.venv/development)
	$(BIN)/python -m monobeast --savedir results/agents --xpid $(GAME) --mode test_render --num_episodes 1 $(FLAGS)

train: .venv/runtime
	$(BIN)/python -m monobeast --xpid pong --total_steps 2_000_000 $(FLAGS)

poly: .venv/extension
	$(BIN)/python -m polybeast --xpid pong-poly $(FLAGS)

minatar: .venv/development
	$(BIN)/python -m monobeast --xpid minatar-breakout --env MinAtar/Breakout-v1 $(FLAGS)

# Each of these is a study in ~/logs/torchbeast/NAME, which the same command goes on with. A run has
# all cores, one run at a time; SLOTS="--cores_per_run 1" makes it one for each core.
SLOTS ?= --cores_per_run $$(nproc)
SWEEP := $(BIN)/python -m libtorchbeast.tools.sweep
SEEDS := 1-3

results-pong: .venv/runtime
	$(SWEEP) $@ $(SLOTS) --seed $(SEEDS) -- python -m monobeast --total_steps 2_000_000 $(FLAGS)

results-poly-pong: SEEDS := 0
results-poly-pong: .venv/extension
	$(SWEEP) $@ $(SLOTS) --seed $(SEEDS) -- python -m polybeast --net monobeast.Net --total_steps 2_000_000 $(FLAGS)

ATARI := BreakoutNoFrameskip-v4,SpaceInvadersNoFrameskip-v4,BeamRiderNoFrameskip-v4,QbertNoFrameskip-v4,SeaquestNoFrameskip-v4

results-atari: SEEDS := 1
results-atari: .venv/runtime
	$(SWEEP) $@ $(SLOTS) --env $(ATARI) --seed $(SEEDS) -- python -m monobeast --total_steps 10_000_000 $(FLAGS)

results-atari-%:
	@$(MAKE) --no-print-directory results-atari ATARI=$*NoFrameskip-v4

# A random policy never crosses Freeway's road, unless its actions may last (examples/options).
results-atari-Freeway:
	@$(MAKE) --no-print-directory results-atari ATARI=examples.options.atari:FreewayOptions-v0 FLAGS="--total_steps 1_000_000 $(FLAGS)"

MINATAR := --total_steps 5_000_000 --log_every 2

results-quick: .venv/development
	$(BIN)/python -m monobeast $(MINATAR) --env MinAtar/Asterix-v1 --seed 4 --xpid quick $(FLAGS)
	$(BIN)/python -m libtorchbeast.tools.plot results/minatar/Asterix-[123] ~/logs/torchbeast/quick --groups --out ~/logs/torchbeast/quick/plot.png

GAMES := MinAtar/Asterix-v1,MinAtar/Breakout-v1,MinAtar/Freeway-v1,MinAtar/Seaquest-v1,MinAtar/SpaceInvaders-v1

results-minatar: .venv/development
	$(SWEEP) $@ $(SLOTS) --env $(GAMES) --seed $(SEEDS) -- python -m monobeast $(MINATAR) $(FLAGS)

results-minatar-20M: .venv/development
	$(SWEEP) $@ $(SLOTS) --env $(GAMES) --seed $(SEEDS) -- python -m monobeast --total_steps 20_000_000 --log_every 10 $(FLAGS)

results-minatar-%:
	@$(MAKE) --no-print-directory results-minatar GAMES=MinAtar/$*-v1

results-poly-%: .venv/development .venv/extension
	$(SWEEP) results-poly-minatar $(SLOTS) --env MinAtar/$*-v1 --seed $(SEEDS) -- \
		python -m polybeast --net monobeast.Net $(MINATAR) $(FLAGS)

# Both networks learn with the same settings. With less entropy some seeds never learn to wait.
RECALL := --env examples.memory.recall:Recall-v0 --net monobeast.Net --learning_rate 4e-4 --batch_size 8 --unroll_length 20 \
	--envs_per_actor 64 --discounting 0.99 --vtrace_lambda 0.95 --entropy_cost 0.05 --entropy_schedule linear --baseline_cost 0.5 \
	--reward_clipping abs_one --observation_scaling none --reward_scaling none --passes 1 --minibatches 1 --ppo_clip 0 --total_steps 1_000_000 --log_every 2

results-memory: .venv/runtime
	$(SWEEP) $@ $(SLOTS) --use_lstm off,on --seed $(SEEDS) -- python -m monobeast $(RECALL) $(FLAGS)

results-r2d2-minatar: .venv/development .venv/extension
	$(SWEEP) $@ $(SLOTS) --env $(GAMES) --seed $(SEEDS) -- python -m r2d2 --total_steps 1_000_000 --eval_every 100_000 $(FLAGS)

# Each sequence is longer than the time over which its game must be remembered.
R2D2_RECALL := --num_servers 1 --envs_per_server 32 --batch_size 16 --replay_ratio 2 --replay_capacity 200_000 --replay_start 5000 \
	--learning_rate 1e-3 --burn_in 20 --target_update_every 100 --precision fp32 --torch_threads 1 --eval_every 50_000 --num_episodes 50 --max_episode_steps 1000
LONG := examples.memory.recall:Recall-20-v0,examples.memory.chain:Chain-100-v0,examples.memory.maze:TMaze-50-v0
LONGER := examples.memory.recall:Recall-50-v0,examples.memory.recall:Recall-100-v0

results-r2d2-memory: .venv/runtime .venv/extension
	$(SWEEP) $@ $(SLOTS) --env,train_length,total_steps $(LONG) 40,120,80 400_000,600_000,600_000 --core lstm,mingru --seed $(SEEDS) -- \
		python -m r2d2 $(R2D2_RECALL) $(FLAGS)
	$(SWEEP) $@-longer $(SLOTS) --env,train_length,total_steps $(LONGER) 80,130 400_000,2_000_000 --core mingru --seed $(SEEDS) -- \
		python -m r2d2 $(R2D2_RECALL) $(FLAGS)

# MonoBeast in the same games, with a minGRU and without memory.
results-memory-long: .venv/runtime
	$(SWEEP) $@ $(SLOTS) --env,unroll_length,envs_per_actor,learning_rate,baseline_cost,vtrace_lambda,entropy_cost,reward_clipping \
		$(LONG) 42,101,104 64,16,32 4e-4,3e-4,6e-4 0.5,0.02,0.02 0.95,0,0.95 0.01,0.01,0.003 abs_one,abs_one,none --core off,mingru --seed $(SEEDS) -- \
		python -m monobeast --net monobeast.Net --batch_size 8 --discounting 0.99 --entropy_schedule constant --observation_scaling none \
		--reward_scaling none --passes 1 --minibatches 1 --ppo_clip 0 --total_steps 1_000_000 --log_every 2 $(FLAGS)

MUJOCO := Hopper-v5,Walker2d-v5,HalfCheetah-v5,Ant-v5

results-mujoco: .venv/development
	$(SWEEP) $@ $(SLOTS) --env $(MUJOCO) --seed $(SEEDS) -- python -m monobeast --eval_every 0 $(FLAGS)

results-poly-mujoco: .venv/development .venv/extension
	$(SWEEP) $@ $(SLOTS) --env $(MUJOCO) --seed $(SEEDS) -- python -m polybeast --eval_every 0 $(FLAGS)

results-mujoco-%:
	@$(MAKE) --no-print-directory results-mujoco MUJOCO=$*-v5

results-poly-mujoco-%:
	@$(MAKE) --no-print-directory results-poly-mujoco MUJOCO=$*-v5

test: .venv/development .venv/extension
	@bash .ci/packages $(BIN)/python test
	$(BIN)/python -m pytest $(FLAGS)

test-examples: .venv/examples .venv/extension
	@bash .ci/packages $(BIN)/python node
	$(BIN)/python -m pytest examples tests/export_test.py tests/trackers_test.py $(FLAGS)

bench: .venv/development .venv/extension
	$(BIN)/python -m benchmarks $(FLAGS)

mutants: .venv/development .venv/extension
	@bash .ci/packages $(BIN)/python test
	$(BIN)/python -m benchmarks.mutants $(FLAGS)

faults: .venv/development .venv/extension
	@bash .ci/packages $(BIN)/python test
	$(BIN)/python -m tests.faults $(FLAGS)

soak: .venv/development .venv/extension
	$(BIN)/python -m tests.soak $(FLAGS)

gpu:
	$(PYTHON) -m tests.gpu $(FLAGS)

tsan asan:
	@$(MAKE) --no-print-directory -f tests/core/Makefile -j$$(nproc) build/$@/core_test
	@$(MAKE) --no-print-directory -f tests/core/Makefile run-$@ FLAGS="$(FLAGS)"

fuzz:
	@bash .ci/packages $(PYTHON) fuzz
	@$(MAKE) --no-print-directory -f tests/core/Makefile run-fuzz FLAGS="$(FLAGS)"

BASE ?= origin/main

fork-diff:
	@$(PYTHON) -m libtorchbeast.tools.fork_diff $(BASE)

CPP := $(wildcard libtorchbeast/src/* tests/core/*.cc tests/core/*.h benchmarks/*.cc)

lint: .venv/development
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: .venv/development
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

docs: .venv/extension
	$(BIN)/python -m docs.generate

setup: .venv/runtime

build: .venv/extension

.venv/runtime: requirements.txt
	@bash .ci/venv $(PYTHON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/development: requirements-dev.txt .venv/runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

NO_DEPS := examples/nethack/requirements.txt examples/self_play/kaggle.txt
EXAMPLES := $(filter-out $(NO_DEPS),$(wildcard examples/requirements.txt examples/*/requirements.txt))

.venv/examples: $(EXAMPLES) $(NO_DEPS) .venv/development
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EXAMPLES:%=-r %)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(NO_DEPS:%=-r %)
	@touch $@

EXTENSION := setup.py requirements-poly.txt requirements-env.txt $(wildcard libtorchbeast/src/*)

.venv/extension: .venv/runtime $(EXTENSION)
	@bash .ci/packages $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-poly.txt
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

clean:
	rm -rf .venv build libtorchbeast/*.so .pytest_cache .ruff_cache .mypy_cache
