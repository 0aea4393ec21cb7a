# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Trains rl_games' PPO with the settings that its package has for a task, on one core.

    python benchmarks/peers/rl_games_train.py atari/ppo_pong_envpool SEED

TensorBoard files are in runs/ppo_pong_envpool/summaries. Only the device, the threads, the seed and
the name of the folder are changed, and the run goes on until it is ended.
"""

import pathlib
import sys

import rl_games
import yaml
from rl_games.torch_runner import Runner


def main() -> None:
    task, seed = sys.argv[1:]
    path = pathlib.Path(rl_games.__file__).parent / "configs" / f"{task}.yaml"
    settings = yaml.safe_load(path.read_text())
    params, config = settings["params"], settings["params"]["config"]
    params.update(seed=int(seed), torch_threads=1)
    config.update(device="cpu", full_experiment_name=path.stem, max_epochs=-1)
    config["env_config"].update(seed=int(seed), num_threads=1)
    runner = Runner()
    runner.load(settings)
    runner.run({"train": True})


if __name__ == "__main__":
    main()
