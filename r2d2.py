# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""R2D2 (Kapturowski et al. 2019): recurrent Q-learning from replay, on PolyBeast's servers.

    python -m r2d2 --env MinAtar/Breakout-v1 --xpid breakout  # train; run it again to resume
    python -m r2d2 --xpid breakout --mode test                # play 10 games with the network
    python -m r2d2 --server_addresses envs-1:5000-5015 --tls_cert ...

It is also an example of another algorithm on this plumbing: servers, streams, batches, the queue,
runs, checkpoints and the log are those of polybeast.py. It has its own network, whose outputs are
Q-values, its own choice of actions, its own targets and loss (the equations are in
libtorchbeast/q_learning/recurrent_q.py), and a replay buffer between the queue and the learner
(libtorchbeast/q_learning/replay.py):

    server -> row -> batch -> net -> row -> rollout -> replay -> batch -> loss -> weights
                                                         ^----- priorities ----'

To change network or loss, edit the places marked FORK HERE. An environment goes into
polybeast_env.py.
"""

import argparse
import copy
import functools
import logging
import os
import threading

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import numpy as np
import torch
from torch import nn

import atari_wrappers
import polybeast
import polybeast_env
from libtorchbeast import models, program, recipes
from libtorchbeast.accelerator.devices import to_host
from libtorchbeast.distributions import MASKED, make_distribution
from libtorchbeast.flags import MAX_STEPS, Flags, Parser, UserError, real, require, run_path, whole
from libtorchbeast.models import CoreState, choose_actions
from libtorchbeast.net_check import check_finite
from libtorchbeast.q_learning import recurrent_q
from libtorchbeast.q_learning.replay import Replay
from libtorchbeast.q_learning.replay_memory import block_shapes, require_disk, required_bytes
from libtorchbeast.rollouts import Rollout
from libtorchbeast.run import Run
from libtorchbeast.shared_memory import require_stream_memory
from libtorchbeast.spec import Spec
from libtorchbeast.transitions import Transitions

logger = logging.getLogger("r2d2")


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """R2D2's network: a trunk, a core that also reads the last reward and action, and two heads,
    the value of a state and the advantages of its actions. Small images and vectors get a small
    trunk. `policy_logits` are the rescaled Q-values, and `baseline` is the highest Q-value."""

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.parts = models.Parts(spec)
        self.distribution = make_distribution(spec.actions)
        C, *size = self.parts.image_shape or (0,)
        is_large = C > 0 and min(size) >= 36
        width = 512 if is_large else 128
        if is_large:
            self.trunk = nn.Sequential(
                nn.Conv2d(C, 32, 8, stride=4), nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(),
            )  # fmt: skip
        elif C:
            self.trunk = nn.Sequential(nn.Conv2d(C, 16, 3), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.LazyLinear(width), nn.ReLU())
        with torch.no_grad():
            self.see(*self.parts.zeros())  # gives the lazy layer its size
        self.core = models.make_core(flags, width + 1 + self.distribution.num_features, width)
        H = self.core.hidden_size
        self.value = nn.Sequential(nn.Linear(H, width), nn.ReLU(), nn.Linear(width, 1))
        A = self.distribution.num_logits
        self.advantage = nn.Sequential(nn.Linear(H, width), nn.ReLU(), nn.Linear(width, A))

    def initial_state(self, batch_size: int) -> CoreState:
        return models.zero_state(self.core, batch_size)

    def see(self, image: torch.Tensor | None, vector: torch.Tensor | None) -> torch.Tensor:
        """[N, C, H, W] or None, and [N, F] or None -> [N, width]."""
        seen = [] if image is None else [self.trunk(image)]
        seen += [] if vector is None else [vector]
        return self.fc(torch.cat(seen, dim=1))

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["reward"].shape
        x = self.see(*self.parts(inputs)).float().view(T, B, -1)
        last_action = self.distribution.features(inputs["last_action"])
        last_reward = inputs["reward"].clamp(-1, 1).unsqueeze(-1)
        x = torch.cat([x, last_reward, last_action], dim=-1)
        x, core_state = models.unroll(
            self.core, x, inputs["done"], core_state, self.initial_state(B)
        )
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            value, advantage = self.value(x.float()), self.advantage(x.float())
        q = value + advantage - advantage.mean(dim=-1, keepdim=True)  # [T, B, A]
        is_masked = "action_mask" in inputs
        best = recurrent_q.best_value(models.masked(q, inputs)) if is_masked else q.amax(dim=-1)
        return dict(policy_logits=q, baseline=recurrent_q.unrescale(best)), core_state

    target: nn.Module  # made by `for_loss`

    def for_loss(self, spec: Spec, flags: Flags) -> dict[str, nn.Module]:
        """The target network, which the learner alone has, and saves."""
        self.target_update_every = flags.target_update_every
        return dict(target=copy.deepcopy(self).requires_grad_(False))

    def after_step(self, updates: int) -> None:
        if updates % self.target_update_every == 0:  # also when a run begins, with 0
            self.target.load_state_dict(self.state_dict())


# ======================================================================================= FORK HERE
def targets(batch: Transitions) -> dict[str, torch.Tensor]:
    """The rescaled n-step returns h(G), which end in the target network's value of the best action
    of the network in training ([R2D2] eq. 1 and [Double] eq. 4 in recurrent_q.py)."""
    target_q = batch.forward(batch.net.target, batch.core_state)["policy_logits"]
    values = recurrent_q.double_q_values(batch.outputs["policy_logits"], target_q)
    flags = batch.flags
    return dict(q=recurrent_q.targets(batch.rows, values, flags.discounting, flags.n_steps))


IMPORTANCE_EXPONENT = 0.6  # of the weights that correct for the priorities


def loss(batch: Transitions) -> dict[str, torch.Tensor]:
    """R2D2's loss ([R2D2] section 2.3), mean of weight (h(G) - Q(x, a))^2 / 2. The priorities are
    for the replay, which says with which chance it has drawn each column."""
    q, actions = batch.outputs["policy_logits"], batch.now["action"]  # [T, B, A] and [T, B]
    q_taken = q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    errors = torch.where(batch.real, batch.targets["q"] - q_taken, 0.0)
    weights = recurrent_q.importance_weights(batch.columns["chance"], IMPORTANCE_EXPONENT)  # [B]
    return dict(
        total_loss=0.5 * batch.mean(weights * errors**2),
        td_error=errors.abs(),
        priorities=recurrent_q.priorities(errors.detach(), batch.real),
    )


# ============================================================================================ flags
# Defaults for each kind of environment. Those of Atari are near the paper's. Shorter runs need more
# updates for each step, and so smaller batches (docs/r2d2.md).
SMALL = dict(
    batch_size=8, learning_rate=2e-3, total_steps=5_000_000, eval_every=500_000,
    unroll_length=20, burn_in=10, train_length=40, replay_capacity=500_000,
    replay_start=10_000, replay_ratio=4.0, target_update_every=100,
)  # fmt: skip
RECIPES: recipes.Recipes = {
    "atari": dict(
        batch_size=64, learning_rate=1e-4, total_steps=10_000_000, eval_every=1_000_000,
        unroll_length=20, burn_in=40, train_length=80, replay_capacity=1_000_000,
        replay_start=50_000, replay_ratio=1.0, target_update_every=2500,
    ),
    "vectors": SMALL,  # only with --recipe vectors: a recurrent network takes "other"
    "other": SMALL,
}  # fmt: skip
# Flags that the other programs have, and of which R2D2 can have only this value.
FIXED = dict(
    greedy=True,  # a Q-network has no probabilities
    passes=1,
    minibatches=1,
    entropy_schedule="constant",
    observation_scaling="none",
    reward_scaling="none",
    reward_clipping="none",
    loss_reduction="mean",
)


# fmt: off
def make_parser() -> Parser:
    parser = Parser("r2d2", __doc__)
    polybeast.add_acting_flags(parser)
    parser.add_shared("learning", "model")
    add = parser.group("replay", "What the replay buffer keeps, and how it is sampled.")
    add("--replay_capacity", type=whole(1, MAX_STEPS), metavar="STEPS",
        help="Number of steps that the replay buffer holds.")
    add("--replay_start", type=whole(1, MAX_STEPS), metavar="STEPS",
        help="Number of steps to collect before learning begins.")
    add("--replay_ratio", type=real(0.01, 1000),
        help="Number of steps that are trained on for each new environment step, without burn-in.")
    add("--burn_in", type=whole(0), metavar="STEPS",
        help="Number of rows at the start of a sequence that only bring the recurrent state up to "
             "date. Sequences begin every --unroll_length steps.")
    add("--train_length", type=whole(1), metavar="STEPS",
        help="Number of steps of a sequence, after the burn-in, that are trained on.")
    add("--priority_exponent", type=real(0, 1), default=0.9,
        help="Exponent of the priorities. With 0 all sequences are sampled with the same "
             "probability.")
    add("--n_steps", type=whole(1, 1000), default=5, help="Number of rewards in an n-step target.")
    add("--discounting", type=real(0, 1), default=0.997, help="Discount factor gamma.")
    add("--target_update_every", type=whole(1), metavar="UPDATES",
        help="Number of updates between two copies of the network into the target network.")
    add("--save_replay", action="store_true",
        help="Keep the replay buffer in a file in the run's folder, so that a resume continues "
             "with it. Otherwise a resume begins with an empty one.")
    parser.add_shared("optimizer", "evaluation")
    parser.set_defaults(**FIXED, core="lstm")
    parser.explain(**dict.fromkeys(FIXED, argparse.SUPPRESS))
    parser.explain(
        total_steps="Number of new agent steps.",
        batch_size="Number of sequences in a learner's batch.",
        unroll_length="Number of steps in a rollout, and between the starts of two sequences.")
    parser.explain_recipes(RECIPES, "on Atari")
    return parser
# fmt: on


def check_flags(draft: argparse.Namespace) -> Flags:
    """Fills in the defaults that depend on other flags, and freezes the result. Raises UserError if
    two flags contradict each other."""
    recipes.apply(draft, RECIPES, "atari" if atari_wrappers.is_atari(draft.env) else "other")
    polybeast_env.complete_flags(draft)
    if draft.max_learner_queue_size is None:  # the streams go on during an update
        columns = (draft.num_actors or draft.num_servers) * draft.envs_per_server
        draft.max_learner_queue_size = max(draft.batch_size, 2 * columns)
    for name in ("passes", "minibatches") if draft.mode == "train" else ():
        require(draft, name, getattr(draft, name) == 1, "1: --replay_ratio says how often to learn")
    most = f"at most --replay_capacity {draft.replay_capacity}"
    require(draft, "replay_start", draft.replay_start <= draft.replay_capacity, most)
    return polybeast.check_acting_flags(draft)


def check_fits(flags: Flags, spec: Spec) -> None:
    """Raises UserError if R2D2 cannot learn in these environments with these flags."""
    if taken := sorted({*OWN_OUTPUTS, *OTHER_KEYS} & spec.observations.keys()):
        raise UserError(f"The observation key {taken[0]!r} is also a row's key; please rename it")
    if spec.actions.kind != "discrete":
        raise UserError(f"--env {spec.name}: R2D2 needs Discrete actions, seen {spec.actions}")
    T, S = flags.unroll_length, flags.train_length
    require(flags, "n_steps", flags.n_steps <= S, f"at most --train_length {S}")
    most = f"at most --train_length {S}, because steps between two sequences are not trained on"
    require(flags, "unroll_length", T <= S, most)
    less = f"less than --total_steps {flags.total_steps}"
    require(flags, "replay_start", flags.replay_start < flags.total_steps, less)
    k = max(spec.stacks.values(), default=1)
    require(flags, "unroll_length", T >= k - 1, f"at least {k - 1}, for stacks of {k} frames")
    blocks = (flags.burn_in + S) // T + 2
    columns = flags.num_actors * spec.num_envs
    least = max(blocks * columns, 2 * flags.batch_size) * T
    expected = f"at least {least:,}, so that each of {columns} environments has a whole sequence"
    require(flags, "replay_capacity", flags.replay_capacity >= least, expected)
    name, least = "max_learner_queue_size", min(flags.batch_size, columns)
    require(flags, name, flags.max_learner_queue_size >= least, f"at least {least}")


def replay_memory(flags: Flags, spec: Spec, core_state: CoreState) -> int:
    """The bytes of memory that the replay needs. With --save_replay these are none, and UserError
    is raised unless its file fits onto the disk."""
    shapes = block_shapes(spec, core_state, OWN_OUTPUTS, flags.unroll_length)
    needed = required_bytes(shapes, -(-flags.replay_capacity // flags.unroll_length))
    if flags.save_replay:
        require_disk(flags, replay_path(flags), needed)
    return 0 if flags.save_replay else needed


def replay_path(flags: Flags) -> str:
    return os.path.join(run_path(flags), "replay.bin")


# ======================================================================================== inference
# What the replay keeps of `Explorer.act`'s outputs, besides the action: name -> (shape, dtype).
OWN_OUTPUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "q_taken": ((), "float32"),  # Q(x_t, a_t), rescaled
    "q_max": ((), "float32"),
}
OTHER_KEYS = ("environment", "serial")  # also in rollouts or the replay


class Explorer:
    """Gives each environment a number, and with it its probability of a random action: numbers i,
    i + N, i + 2 N, ... have epsilon i.

    The number travels with the core state. A stream that is opened again begins with NEW, which is
    no number yet, so the replay never links its rows with those before. Its environments get the
    epsilons that were used least recently, which are those of the lost stream.
    """

    NEW = -1

    def __init__(self, num_envs: int):
        self._epsilons = recurrent_q.epsilons(num_envs)
        self._next_numbers = np.arange(num_envs)
        self._used = np.zeros(num_envs, np.int64)  # the last call that used each, counted from 1
        self._lock = threading.Lock()  # protects the two above

    def number(self, numbers: torch.Tensor) -> torch.Tensor:
        """int64 [1, B, 1], in which environments that have no number yet get one."""
        given, N = numbers.flatten().numpy().copy(), len(self._epsilons)
        with self._lock:
            call = self._used.max() + 1
            self._used[given[given != self.NEW] % N] = call
            for k in np.flatnonzero(given == self.NEW):
                i = self._used.argmin()
                given[k] = self._next_numbers[i]
                self._next_numbers[i] += N
                self._used[i] = call
        return torch.from_numpy(given).view_as(numbers)

    def choose(self, q: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The actions int64 [1, B] for Q-values [1, B, A]: the best, or any that is allowed."""
        epsilons = self._epsilons[numbers.view(1, -1) % len(self._epsilons)]
        allowed = q[0] > MASKED / 2
        allowed |= ~allowed.any(-1, keepdim=True)  # an episode's last row may allow none
        any_allowed = torch.multinomial(allowed.float(), 1).view(1, -1)
        return torch.where(torch.rand(epsilons.shape) < epsilons, any_allowed, q.argmax(dim=-1))

    def act(
        self, net: nn.Module, row: Rollout, core_state: CoreState
    ) -> tuple[dict[str, torch.Tensor], CoreState]:
        """Answers a row [1, B, ...], as `act_on` does. The last part of the core state is the
        numbers of the environments, int64 [1, B, 1]."""
        *state, numbers = core_state
        chosen = choose_actions(net, row, tuple(state), greedy=True)
        (outputs, next_state), numbers = to_host(chosen, numbers)  # together, with one wait
        check_finite(net, row, outputs)
        q, numbers = outputs["policy_logits"], self.number(numbers)
        action = self.choose(q, numbers)
        own = {
            "action": action,
            "q_taken": q.gather(-1, action.unsqueeze(-1)).squeeze(-1),
            "q_max": recurrent_q.best_value(q),
            "environment": numbers[..., 0],
        }
        return own, (*next_state, numbers)


def first_priorities(flags: Flags, batch: Rollout) -> torch.Tensor:
    """The priorities [B] of new sequences [S+1, B], from the Q-values of acting."""
    rows = {k: v[flags.burn_in :] for k, v in batch.items() if "/" not in k}
    q_taken, q_max = rows["q_taken"][:-1], rows["q_max"]
    goal = recurrent_q.targets(rows, q_max, flags.discounting, flags.n_steps)
    real = ~rows["done"][1:]
    return recurrent_q.priorities(torch.where(real, goal - q_taken, 0.0), real)


# ========================================================================================= training
def train(flags: Flags) -> Run:
    """Trains as `polybeast.train` does, and raises what that raises."""
    with polybeast.opened(flags) as (servers, spec):
        flags = recipes.complete(flags, lambda draft, spec: check_flags(draft), spec, RECIPES)
        check_fits(flags, spec)
        net = models.make_net(Net, spec, flags)
        state = models.initial_state(net, 1)
        replay = replay_memory(flags, spec, state)
        max_bytes = require_stream_memory(flags, servers.description, state, replay)
        device = torch.device(flags.learner_device)
        run = Run(flags, spec, net, device, player, targets, loss, {"chance": torch.float32})
        if "priorities" not in run.vectors:
            said = "expected priorities [B] among them, with which the replay draws sequences"
            raise UserError(f"loss() returned the vectors {[*run.vectors]}; {said}")
        with run:
            if not run.finished():
                run.between = make_replay(run, state)
                N = flags.num_actors * spec.num_envs
                columns, act = min(flags.batch_size, N), Explorer(N).act
                state = (*state, torch.full((1, 1, 1), Explorer.NEW))  # and Explorer's number
                polybeast.train_with_servers(run, servers, max_bytes, columns, Net, state, act)
    return run


def make_replay(run: Run, core_state: CoreState) -> Replay:
    """The run's replay. With --save_replay a resumed run has the steps of its checkpoint again."""
    flags = run.flags
    path = replay_path(flags) if flags.save_replay else None
    priorities = functools.partial(first_priorities, flags)
    replay = Replay(flags, run.spec, core_state, OWN_OUTPUTS, priorities, path)
    if path is not None:
        run.state.also_save("replay", replay)
    run.log.sources.append(replay.columns)
    if run.learner.updates:
        steps = replay.columns()["replay_steps"]
        logger.info("The replay buffer starts %s", f"with {steps:,.0f} steps" if steps else "empty")
    return replay


# ==================================================================================== test and main
player = functools.partial(polybeast.player, net=Net)
parse = functools.partial(program.parse, make_parser, check_flags)
main = functools.partial(program.main, "r2d2", make_parser, check_flags, train, player)


if __name__ == "__main__":
    main()
