"""The Atari recipe of Mnih et al. (2015), once, in two forms that agree step by step.

* `make_atari_vector`: ale-py's native vector environment. For training.
* `wrap_pytorch(wrap_deepmind(make_atari(env_id)))`: gymnasium wrappers. To play, watch and fork.

One agent step is 4 emulator frames with one action; the last two are max-pooled, turned gray and
scaled to 84x84; an observation stacks the last 4 agent steps, oldest first, uint8 [4, 84, 84].

Ids. `PongNoFrameskip-v4`: no sticky actions; losing a life ends an episode, not the game.
`ALE/Pong-v5` (Machado et al., 2018): an action sticks with probability 0.25; no life-loss rule.
Both take the recipe's 4 frames a step. Sticky actions and action set come from gymnasium's
registry, and the life-loss rule is on exactly where actions do not stick (`...NoFrameskip-v0`
counts as sticky). `Pong-v0` and `Pong-v4`, which skip 2 to 4 frames at random, are refused.

A reset starts the game, holds FIRE for one frame where the game has FIRE, does no-op frames and
clears the stack to zeros. After a mere life loss the game goes on: one ordinary step (4 frames, a
reward that counts in the game) with FIRE, or NOOP where there is no FIRE; the stack is kept. FIRE
alone is pressed, no second action after it: a game that waits for more leaves that to the policy.

Where the two forms differ:
* No-op starts: own random numbers, and native ones cover 0..noop_max-1 frames, the FIRE among them;
  classic ones 1..noop_max after the FIRE. Classic no-ops also count towards `max_frames`, and
  there are none in the two games that have no NOOP action.
* Seeds: native environment n is seeded seed + n, and AtariEnv derives the emulator's seed from the
  classic one, so that sticky actions stick at other frames.
* Reset: the native form resets by itself on the step after a game's last, its action ignored.
  The classic form waits for `reset()`, which after a mere life loss plays the FIRE step instead.
In both, a game that ends inside a step shows as its last observation a max-pool without the frames
that were left out, up to one step old.
"""

from __future__ import annotations

import re

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)

FRAMES_PER_STEP = 4
STACK = 4
_ENTRY_POINT = "ale_py.env:AtariEnv"
_ATARI_NAME = re.compile(r"(?:ALE/)?([A-Za-z0-9]+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


class UnknownGame(gymnasium.error.Error, ValueError):
    """The id names no game, or a form of one that the recipe refuses."""


def is_atari(env_id: str) -> bool:
    """True if `env_id` names a game of ale-py, also in a form that the recipe refuses."""
    import ale_py  # noqa: F401  (registers its games)

    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id].entry_point == _ENTRY_POINT
    name = _ATARI_NAME.fullmatch(env_id)
    return name is not None and f"ALE/{name[1]}-v5" in gymnasium.registry


def _registered(env_id: str) -> dict:
    """The registry's kwargs of an id that the recipe accepts; UnknownGame for any other."""
    if is_atari(env_id):
        spec = gymnasium.registry.get(env_id)
        if spec is not None and isinstance(spec.kwargs["frameskip"], int):
            return spec.kwargs
        name = _ATARI_NAME.fullmatch(env_id)[1]
        forms = [f"{name}NoFrameskip-v4", f"ALE/{name}-v5"]
    else:
        forms = ["PongNoFrameskip-v4", "ALE/Pong-v5"]
    forms = " or ".join(repr(form) for form in forms if form in gymnasium.registry)
    raise UnknownGame(
        f"env_id: {env_id!r} is no Atari id of this recipe; expected one like {forms}"
    )


def _check_at_least(lowest: int, **values: int) -> None:
    for name, value in values.items():
        if value < lowest:
            raise ValueError(f"{name}: {value}, expected at least {lowest}")


# ---------------------------------------------------------------------------------------------
# Native form
# ---------------------------------------------------------------------------------------------


def make_atari_vector(
    env_id: str,
    num_envs: int,
    *,
    num_threads: int = 1,
    noop_max: int = 30,
    max_frames: int = 108_000,
    terminal_on_life_loss: bool | None = None,
) -> AtariVector:
    """`num_envs` games of `env_id`, stepped together by `num_threads` threads.

    `noop_max` and `max_frames` count emulator frames: a game starts with fewer than `noop_max`
    no-ops and is truncated after `max_frames`. `terminal_on_life_loss=None` takes the id's rule.
    Raises ValueError for an id that is not one of the recipe's and for sizes out of range.
    """
    from ale_py.vector_env import AtariVectorEnv

    kwargs = _registered(env_id)
    sticky = kwargs["repeat_action_probability"]
    if terminal_on_life_loss is None:
        terminal_on_life_loss = sticky == 0
    _check_at_least(1, num_envs=num_envs, num_threads=num_threads, max_frames=max_frames)
    _check_at_least(0, noop_max=noop_max)
    vector = AtariVectorEnv(
        kwargs["game"],
        num_envs,
        num_threads=num_threads,
        max_num_frames_per_episode=max_frames,
        repeat_action_probability=sticky,
        full_action_space=kwargs["full_action_space"],
        autoreset_mode=AutoresetMode.NEXT_STEP,
        stack_num=STACK,
        frameskip=FRAMES_PER_STEP,
        noop_max=noop_max,
        # True would lose the rest of the game, the difference between a life and the game in
        # `terminated`, and the score. AtariVector finds life losses by counting lives.
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
    )
    return AtariVector(vector, terminal_on_life_loss)


class AtariVector(VectorEnv):
    """Whole games on ale-py's `AtariVectorEnv`, with next-step autoreset and life loss as a flag.

    `step(actions)`, integers [N], returns observation uint8 [N, 4, 84, 84], unclipped reward
    float32 [N], terminated bool [N], truncated bool [N] and info: `life_lost` bool [N] and what
    ale-py gives: `lives`, `frame_number`, `episode_frame_number`, `env_id`, each int32 [N].

    With `terminal_on_life_loss`, a step that loses a life but not the last one is `terminated`.
    `life_lost` is True where that is all: the game goes on, and the next step presses FIRE (NOOP
    where there is none) in place of the caller's action. Its reward is the game's, and it may lose
    a life again. A life lost at the frame limit is `terminated` and `truncated`, not `life_lost`.
    """

    def __init__(self, vector: VectorEnv, terminal_on_life_loss: bool):
        self.num_envs = vector.num_envs
        self.observation_space = vector.observation_space
        self.action_space = vector.action_space
        self.single_observation_space = vector.single_observation_space
        self.single_action_space = vector.single_action_space
        # An own dict: ale-py writes into the one that all of gymnasium's vector classes share.
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "frames_per_step": FRAMES_PER_STEP,
            "frame_stacks": {"frame": STACK},
        }
        self.terminal_on_life_loss = terminal_on_life_loss
        self._vector = vector
        self._over = self._life_lost = np.zeros(self.num_envs, np.bool_)
        self._press = _fire_or_noop([action.name for action in vector.ale.get_action_set()])

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Start every game anew, game n with seed + n; (observation, info) as from `step`."""
        if options:
            raise ValueError(f"options: {options!r}, expected none")
        obs, info = self._vector.reset(seed=seed)
        self._lives = info["lives"].copy()
        self._over = self._life_lost = np.zeros(self.num_envs, np.bool_)
        return obs, {**info, "life_lost": self._life_lost.copy()}

    def step(self, actions: np.ndarray):
        """One agent step of every game. ValueError for actions of a wrong shape, kind or range."""
        actions = self._checked(actions)
        actions[self._life_lost] = self._press
        restarts = self._over  # these are reset by this step, so their lives do not compare
        obs, reward, terminated, truncated, info = self._vector.step(actions)
        lives = info["lives"]
        lost = (0 < lives) & (lives < self._lives) & ~terminated & ~restarts
        lost &= self.terminal_on_life_loss
        self._lives = lives.copy()
        self._over = terminated | truncated
        self._life_lost = lost & ~truncated
        info = {**info, "life_lost": self._life_lost.copy()}
        return obs, reward.astype(np.float32), terminated | lost, truncated, info

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        """A copy of `actions`, known to be good: ale-py waits for ever on one out of range."""
        actions = np.array(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions: shape {actions.shape} of {actions.dtype}, "
                f"expected shape {(self.num_envs,)} of integers"
            )
        if actions.min() < 0 or actions.max() >= self.single_action_space.n:
            raise ValueError(
                f"actions: {actions.min()}..{actions.max()}, "
                f"expected 0..{self.single_action_space.n - 1}"
            )
        return actions.astype(np.int64, copy=False)

    def close_extras(self, **kwargs) -> None:
        """Stop ale-py's threads and free its games, once; called by `close`."""
        self._vector = None


def _fire_or_noop(meanings: list[str]) -> int:
    """The action pressed after a life loss. NOOP, where a game has it, is action 0."""
    return meanings.index("FIRE") if "FIRE" in meanings else 0


# ---------------------------------------------------------------------------------------------
# Classic form
# ---------------------------------------------------------------------------------------------


def make_atari(
    env_id: str, *, render_mode: str | None = None, max_frames: int = 108_000
) -> gymnasium.Env:
    """The game itself: one emulator frame a step, RGB uint8 [210, 160, 3] (some games differ).

    Sticky actions as `env_id` is registered; truncated after `max_frames` frames. `render_mode` is
    None, "rgb_array" or "human". ValueError for an id that is not one of the recipe's.
    """
    _registered(env_id)
    _check_at_least(1, max_frames=max_frames)
    env = gymnasium.make(
        env_id,
        frameskip=1,
        max_num_frames_per_episode=0,  # no limit of the emulator's own: it would count the FIRE
        render_mode=render_mode,
        disable_env_checker=True,
    )
    return FrameLimit(env, max_frames)


def wrap_deepmind(
    env: gymnasium.Env,
    *,
    noop_max: int = 30,
    terminal_on_life_loss: bool | None = None,
    fire_on_reset: bool = True,
    clip_rewards: bool = False,
    frame_stack: bool = True,
) -> gymnasium.Env:
    """The recipe on an environment of `make_atari`: uint8 [4, 84, 84], or [84, 84] unstacked.

    `terminal_on_life_loss=None` takes the id's rule; see `EpisodicLife` for what it asks of the
    caller. `clip_rewards` clips each step's reward to [-1, 1]; leave it to the loss in training.
    """
    if terminal_on_life_loss is None:
        terminal_on_life_loss = env.unwrapped.ale.getFloat("repeat_action_probability") == 0
    if env.unwrapped.get_action_meanings()[0] != "NOOP":
        noop_max = 0  # Backgammon and VideoCheckers: AtariPreprocessing could not do no-ops there
    if fire_on_reset:
        env = FireReset(env)
    env = AtariPreprocessing(env, noop_max=noop_max, frame_skip=FRAMES_PER_STEP)
    if clip_rewards:
        env = ClipReward(env, -1.0, 1.0)
    if frame_stack:
        env = FrameStackObservation(env, STACK, padding_type="zero")
    if terminal_on_life_loss:
        env = EpisodicLife(env, fire_on_reset)
    env.metadata = {
        **env.metadata,
        "frames_per_step": FRAMES_PER_STEP,
        "render_fps": 60 // FRAMES_PER_STEP,  # one image an agent step, at the console's speed
    }
    if frame_stack:
        env.metadata["frame_stacks"] = {"frame": STACK}
    return env


def wrap_pytorch(env: gymnasium.Env) -> gymnasium.Env:
    """Images as uint8 [C, H, W]: [H, W, C] is transposed, [C, H, W] is returned as it is.

    The channels are the shorter of the first and the last axis; ValueError where that is open.
    """
    space = env.observation_space
    if space.dtype != np.uint8 or len(space.shape) != 3 or space.shape[0] == space.shape[2]:
        raise ValueError(f"observation: {space}, expected a uint8 image [C, H, W] or [H, W, C]")
    if space.shape[0] < space.shape[2]:
        return env
    image = gymnasium.spaces.Box(
        space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=np.uint8
    )
    return TransformObservation(env, lambda obs: obs.transpose(2, 0, 1).copy(), image)


class FrameLimit(TimeLimit):
    """Truncates after `max_frames` frames a game that has not ended by itself on the last one."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated and not terminated, info


class FireReset(gymnasium.Wrapper):
    """Holds FIRE for one emulator frame after a reset, where the game has FIRE.

    Goes below the frame skip and the no-ops, as in ale-py's native reset. That frame bypasses
    `FrameLimit`, which so counts as the native form does.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        meanings = self.unwrapped.get_action_meanings()
        if "FIRE" in meanings:
            obs, _, _, _, fired = self.unwrapped.step(meanings.index("FIRE"))
            info.update(fired)
        return obs, info


class EpisodicLife(gymnasium.Wrapper):
    """Losing a life but not the last one ends the episode and not the game.

    `step` then returns terminated=True and info["life_lost"]=True (False on every other step), and
    `reset()` plays one ordinary step of the same game, with FIRE where the game has it and `fire`
    is set, else NOOP. The reset's info holds that step's `reset_reward` (float; it counts in the
    game), `terminated`, `truncated` and `life_lost`: where one of them is set, reset again. Any
    other `reset`, or one with a seed, starts a new game; its info has no `reset_reward`.
    A life lost at the frame limit is `terminated` and `truncated`, not `life_lost`.
    """

    def __init__(self, env: gymnasium.Env, fire: bool = True):
        super().__init__(env)
        self._press = _fire_or_noop(env.unwrapped.get_action_meanings()) if fire else 0
        self._lives = 0
        self._goes_on = False

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self.unwrapped.ale.lives()
        lost = 0 < lives < self._lives and not terminated
        self._lives = lives
        self._goes_on = lost and not truncated
        return obs, reward, terminated or lost, truncated, {**info, "life_lost": self._goes_on}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if self._goes_on and seed is None:
            obs, reward, terminated, truncated, info = self.step(self._press)
            info.update(reset_reward=float(reward), terminated=terminated, truncated=truncated)
            return obs, info
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = self.unwrapped.ale.lives()
        self._goes_on = False
        return obs, {**info, "life_lost": False}
