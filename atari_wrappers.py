"""The Atari recipe of Mnih et al. (2015), in two forms that agree step by step.

* `make_atari_vector`: the native form, on ale-py's vector environment. It is for training.
* `wrap_deepmind(make_atari(env_id))`: the classic form, made of gymnasium wrappers.
  It is for playing, watching and forking.

One agent step is 4 emulator frames with the same action. The last two frames are max-pooled, turned
gray and scaled to 84x84. An observation is the stack of the last 4 agent steps, oldest first, uint8
[4, 84, 84].

Ids:
* `PongNoFrameskip-v4` has no sticky actions. Losing a life ends an episode, but not the game.
* `ALE/Pong-v5` (Machado et al., 2018) repeats the last action with probability 0.25. Losing a life
  does not end an episode.
* Both take the recipe's 4 frames a step. Sticky actions and the set of actions come from
  gymnasium's registry. An id has the life-loss rule if its actions do not stick
  (`...NoFrameskip-v0` counts as sticky).
* `Pong-v0` and `Pong-v4`, which skip 2 to 4 frames at random, are refused.

A reset starts the game, holds FIRE for one frame if the game has FIRE, plays no-op frames and
clears the stack to zeros. After the loss of a life that is not the last one, the game goes on with
one ordinary step (4 frames, and a reward that counts in the game): with FIRE, or with NOOP if the
game has no FIRE. The stack is kept. No second action follows the FIRE: if a game waits for one, the
policy has to find it.

The two forms differ in:
* No-op starts. Each form has its own random numbers. The native form plays 0 to noop_max - 1
  frames, and the FIRE is one of them. The classic form plays 1 to noop_max frames after the FIRE;
  they count towards `max_frames`. It plays none in the two games that have no NOOP action.
* Seeds. Environment n of the native form is seeded with seed + n. In the classic form AtariEnv
  derives the emulator's seed from the given one, so actions stick at other frames.
* Resets. The native form resets by itself on the step after a game's last one, and ignores that
  step's action. The classic form waits for `reset()`, which after the loss of a life plays the FIRE
  step instead.

In both forms, if a game ends inside a step, the frames that the step left out are missing from the
max-pool of the last observation, which may then be up to one step old.
"""

import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from libtorchbeast.spec import describe_actions

FRAMES_PER_STEP = 4
STACK = 4
METADATA = {"frames_per_step": FRAMES_PER_STEP, "frame_stacks": {"frame": STACK}}
_ENTRY_POINT = "ale_py.env:AtariEnv"
_ATARI_NAME = re.compile(
    r"(?:ale_py:)?(?:ALE/)?([A-Za-z0-9]+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?"
)


class UnknownGame(gymnasium.error.Error, ValueError):
    """The id names no game, or a variant of a game that the recipe refuses."""


def is_atari(env_id: str) -> bool:
    """Whether `env_id` names a game of ale-py, including variants that the recipe refuses."""
    import ale_py  # noqa: F401  (registers its games)

    if spec := gymnasium.registry.get(env_id.removeprefix("ale_py:")):
        return spec.entry_point == _ENTRY_POINT
    name = _ATARI_NAME.fullmatch(env_id)
    return name is not None and f"ALE/{name[1]}-v5" in gymnasium.registry


def _registered(env_id: str) -> dict:
    """The registry's kwargs of an id. Raises UnknownGame if the recipe does not accept it."""
    name = "Pong"
    if is_atari(env_id):
        spec = gymnasium.registry.get(env_id.removeprefix("ale_py:"))
        if spec is not None and isinstance(spec.kwargs["frameskip"], int):
            return spec.kwargs
        if match := _ATARI_NAME.fullmatch(env_id):
            name = match[1]
    accepted = (f"{name}NoFrameskip-v4", f"ALE/{name}-v5")
    forms = " or ".join(repr(form) for form in accepted if form in gymnasium.registry)
    raise UnknownGame(
        f"env_id: {env_id!r} is no Atari id of this recipe; expected one like {forms}"
    )


# ====================================================================================== native form
def make_atari_vector(
    env_id: str,
    num_envs: int,
    *,
    num_threads: int = 2,
    noop_max: int = 30,
    max_frames: int = 108_000,
    terminal_on_life_loss: bool | None = None,
) -> "AtariVector":
    """Makes `num_envs` games of `env_id`, stepped together by `num_threads` threads. The second one
    uses a core that a learner leaves idle at times.

    `noop_max` and `max_frames` count emulator frames: a game starts with fewer than `noop_max`
    no-ops and is truncated after `max_frames`. `terminal_on_life_loss=None` follows the id. Raises
    ValueError if the recipe does not accept the id (UnknownGame), or a number is out of range."""
    from ale_py.vector_env import AtariVectorEnv

    kwargs = _registered(env_id)
    if terminal_on_life_loss is None:
        terminal_on_life_loss = kwargs["repeat_action_probability"] == 0
    if min(num_envs, num_threads, max_frames, noop_max + 1) < 1:
        seen = f"{num_envs=}, {num_threads=}, {max_frames=}, {noop_max=}"
        raise ValueError(f"expected at least 1 each, and 0 no-ops; seen {seen}")
    vector = AtariVectorEnv(
        kwargs["game"],
        num_envs,
        num_threads=num_threads,
        max_num_frames_per_episode=max_frames,
        repeat_action_probability=kwargs["repeat_action_probability"],
        full_action_space=kwargs["full_action_space"],
        autoreset_mode=AutoresetMode.NEXT_STEP,
        stack_num=STACK,
        frameskip=FRAMES_PER_STEP,
        noop_max=noop_max,
        # With True, `terminated` would not tell a life's end from the game's, and the game's score
        # would be lost. AtariVector finds lost lives by counting lives.
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
    )
    return AtariVector(vector, terminal_on_life_loss)


class AtariVector(VectorWrapper):
    """Whole games on ale-py's `AtariVectorEnv`, with next-step autoreset and life loss as a flag.

    `step(actions)`, with integers [N], returns observation uint8 [N, 4, 84, 84], unclipped reward
    float32 [N], terminated bool [N], truncated bool [N] and info. The info has ale-py's `lives`,
    `frame_number`, `episode_frame_number` and `env_id`, int32 [N] each, and `torchbeast`, a dict
    with `life_lost` bool [N].

    With `terminal_on_life_loss`, a step that loses a life but not the last one is `terminated` and
    `life_lost`. The next step ignores the caller's action, and may lose a life again. A life lost
    at the frame limit is `terminated` and `truncated`, but not `life_lost`.
    """

    def __init__(self, vector: Any, terminal_on_life_loss: bool):
        super().__init__(vector)
        # A new dict, because ale-py writes into the one that gymnasium's vector classes share.
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, **METADATA}
        self.terminal_on_life_loss = terminal_on_life_loss
        self._actions = describe_actions(vector.single_action_space)
        self._press = _fire_or_noop([action.name for action in vector.ale.get_action_set()])

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Starts every game anew, game n with seed + n. Returns (observation, info) as `step`."""
        if options:
            raise ValueError(f"options: {options!r}, expected none")
        obs, info = self.env.reset(seed=seed)
        self._lives = info["lives"].copy()
        self._over = self._life_lost = np.zeros(self.num_envs, np.bool_)
        return obs, {**info, "torchbeast": {"life_lost": self._life_lost.copy()}}

    def step(self, actions: np.ndarray):
        """One agent step of every game. ValueError: actions of a wrong shape, dtype or range."""
        self._actions.check(np.asarray(actions), self.num_envs)  # else ale-py may wait for ever
        actions = np.array(actions, np.int64)
        actions[self._life_lost] = self._press
        restarts = self._over  # this step resets these games, so their lives cannot be compared
        obs, reward, terminated, truncated, info = self.env.step(actions)
        lives = info["lives"]
        lost = (0 < lives) & (lives < self._lives) & ~terminated & ~restarts
        lost &= self.terminal_on_life_loss
        self._lives = lives.copy()
        self._over = terminated | truncated
        self._life_lost = lost & ~truncated
        info = {**info, "torchbeast": {"life_lost": self._life_lost.copy()}}
        return obs, reward.astype(np.float32), terminated | lost, truncated, info

    def close(self, **kwargs) -> None:
        """Stops ale-py's threads and frees its games."""
        super().close(**kwargs)
        self.env.ale = None  # type: ignore[attr-defined]


def _fire_or_noop(meanings: list[str]) -> int:
    """The action pressed after a life was lost. In games that have NOOP it is action 0."""
    return meanings.index("FIRE") if "FIRE" in meanings else 0


# ===================================================================================== classic form
def make_atari(
    env_id: str, *, render_mode: str | None = None, max_frames: int = 108_000
) -> gymnasium.Env:
    """Makes the game without the recipe: one emulator frame a step.

    An observation is RGB uint8 [210, 160, 3] (some games have other sizes). Actions stick as
    `env_id` says. The game is truncated after `max_frames` frames. `render_mode` is None,
    "rgb_array" or "human". Raises UnknownGame if the recipe does not accept the id."""
    _registered(env_id)
    env = gymnasium.make(
        env_id,
        frameskip=1,
        max_num_frames_per_episode=0,  # no limit in the emulator, which would count the FIRE
        render_mode=render_mode,
        disable_env_checker=True,
    )
    return FrameLimit(env, max_frames)


def wrap_deepmind(
    env: gymnasium.Env, *, noop_max: int = 30, terminal_on_life_loss: bool | None = None
) -> gymnasium.Env:
    """Applies the recipe to an environment of `make_atari`. An observation is uint8 [4, 84, 84].
    `terminal_on_life_loss=None` follows the id; `EpisodicLife` says what it asks of the caller.
    """
    game: Any = env.unwrapped
    if terminal_on_life_loss is None:
        terminal_on_life_loss = game.ale.getFloat("repeat_action_probability") == 0
    if game.get_action_meanings()[0] != "NOOP":
        noop_max = 0  # Backgammon and VideoCheckers, in which AtariPreprocessing cannot do no-ops
    env = FireReset(env)
    env = AtariPreprocessing(env, noop_max=noop_max, frame_skip=FRAMES_PER_STEP)
    env = FrameStackObservation(env, STACK, padding_type="zero")
    if terminal_on_life_loss:
        env = EpisodicLife(env)
    fps = 60 // FRAMES_PER_STEP  # one image per agent step gives the console's speed
    env.metadata = {**env.metadata, **METADATA, "render_fps": fps}
    return env


class FrameLimit(TimeLimit):
    """Truncates a game after `max_frames` frames, unless it ends by itself on the last of them."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated and not terminated, info


class FireReset(gymnasium.Wrapper):
    """Holds FIRE for one emulator frame after a reset, if the game has FIRE.

    It belongs below the frame skip and the no-ops, as in ale-py's native reset. `FrameLimit` does
    not see that frame, so it counts the same frames as the native form.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        game: Any = self.unwrapped
        meanings = game.get_action_meanings()
        if "FIRE" in meanings:
            obs, _, _, _, fired = game.step(meanings.index("FIRE"))
            info.update(fired)
        return obs, info


class EpisodicLife(gymnasium.Wrapper):
    """Losing a life but not the last one ends the episode, but not the game.

    `step` then returns terminated=True and info["torchbeast"]["life_lost"]=True, which is False on
    every other step. The next `reset()` plays one step of the same game; its info["torchbeast"] has
    that step's `reward` (a float), `terminated`, `truncated` and `life_lost`. If one of these flags
    is set, reset again. Any other `reset`, and one with a seed, starts a new game; its
    info["torchbeast"] has `life_lost` only. A life lost at the frame limit is `terminated` and
    `truncated`, not `life_lost`.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        game: Any = env.unwrapped
        self._press = _fire_or_noop(game.get_action_meanings())
        self._ale = game.ale
        self._lives = 0
        self._game_goes_on = False

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._ale.lives()
        lost = 0 < lives < self._lives and not terminated
        self._lives = lives
        self._game_goes_on = lost and not truncated
        info = {**info, "torchbeast": {"life_lost": self._game_goes_on}}
        return obs, reward, terminated or lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        if self._game_goes_on and seed is None:
            obs, reward, terminated, truncated, info = self.step(self._press)
            info["torchbeast"].update(
                reward=float(reward), terminated=terminated, truncated=truncated
            )
            return obs, info
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = self._ale.lives()
        self._game_goes_on = False
        return obs, {**info, "torchbeast": {"life_lost": False}}
