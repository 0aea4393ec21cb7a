# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Networks: what MonoBeast's actors store is what the learner's replay of it computes."""

import contextlib
import copy
from multiprocessing import Pipe

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import monobeast
from libtorchbeast import learner, models
from libtorchbeast.distributions import Categorical
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.timing import ActorTimes
from libtorchbeast.models import act_on
from libtorchbeast.rollouts import core_state_of, rollout_shapes
from libtorchbeast.shared_memory import SharedTensors
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.weights import SharedWeights

N, T, ROLLOUTS, A = 3, 5, 6, 3
CLOSE = dict(rtol=1e-4, atol=1e-5)


class Counting(gymnasium.Env):
    """Shows where in its episode it is, and the last action; episodes of 1 to 8 steps."""

    observation_space = Box(-1, 100, (3,))
    action_space = Discrete(A)

    def __init__(self):
        self._rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._count, self._length = 0, self._rng.integers(1, 9)
        return self._show(-1), {}

    def step(self, action):
        self._count += 1
        ended, truncated = self._count >= self._length, self._length % 2 == 0
        return self._show(action), float(action), ended and not truncated, ended and truncated, {}

    def _show(self, action):
        return np.array([self._count, action, self._rng.normal()], np.float32)


class OnesNet(monobeast.Net):
    """Starts every episode from ones, and keeps the states that it was given."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.given = []
        with torch.no_grad():  # as large as after some training: a wrong state must show
            nn.init.orthogonal_(self.policy.weight, 2.0)

    def initial_state(self, batch_size):
        return tuple(torch.ones_like(state) for state in super().initial_state(batch_size))

    def forward(self, inputs, core_state=()):
        self.given.append(core_state)
        return super().forward(inputs, core_state)


class RuleNet(monobeast.Net):
    """Chooses its own actions, and has two outputs that nobody else knows."""

    def forward(self, inputs, core_state=()):
        outputs, core_state = super().forward(inputs, core_state)
        count = inputs["frame"][..., 0].long()
        outputs |= {
            "action": (count + 1) % A,
            "features": inputs["frame"] * 2,
            "count": count.int(),
        }
        return outputs, core_state


class LearnedNet(monobeast.Net):
    """Its first state is a parameter."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.first = nn.Parameter(torch.ones(2, self.core.num_layers, 1, self.core.hidden_size))

    def initial_state(self, batch_size):
        return tuple(self.first.expand(2, -1, batch_size, -1))


class FeedForwardNet(monobeast.Net):
    """As in a fork that has deleted the core."""

    def initial_state(self, batch_size):
        return ()


not_a_net = {"Net": monobeast.Net}  # for --net


def make_flags(*argv):
    flags = monobeast.make_parser().parse_args(
        ["--env", "CartPole-v1", "--num_actors", "0", "--envs_per_actor", str(N)]
        + ["--unroll_length", str(T), "--precision", "fp32", *argv]
    )
    monobeast.check_flags(flags)
    return flags


def make_actor(net_class, *argv, create_env=Counting):
    flags = make_flags(*argv)
    torch.manual_seed(1)
    env = Environment(create_env, N, "counting")
    net = models.make_net(net_class, env.spec, flags)
    return monobeast.Actor(env, net, 1, flags, *monobeast.stopwatches())


def make_rollouts(actor, count=ROLLOUTS):
    """`count` consecutive rollouts, their memory filled with rubbish before."""
    row = {name: torch.from_numpy(value) for name, value in actor.row.items()}
    shapes = rollout_shapes(row, actor.core_state, T)
    rollouts = []
    for k in range(count):
        rollout = {n: torch.full(shape, 1, dtype=dtype) for n, (shape, dtype) in shapes.items()}
        actor.unroll({name: tensor.numpy() for name, tensor in rollout.items()}, version=k + 1)
        rollouts.append(rollout)
    return rollouts


def rows_of(rollout):
    return {k: v for k, v in rollout.items() if not k.startswith("core_state/")}


@pytest.fixture(scope="module")
def recurrent():
    """(network, rollouts, the states given to its forward, call by call)."""
    actor = make_actor(OnesNet, "--use_lstm")
    rollouts = make_rollouts(actor)
    given, actor.net.given = actor.net.given, []
    return actor.net, rollouts, given


@pytest.fixture(params=["recurrent", "feed-forward"])
def any_net(request):
    if request.param == "recurrent":
        return request.getfixturevalue("recurrent")[:2]
    actor = make_actor(OnesNet)
    return actor.net, make_rollouts(actor)


def test_the_rollouts_hold_every_case(recurrent):
    """Resets at row 0, inside and at row T, and rows that are both first and inside an episode."""
    done = torch.stack([rollout["done"] for rollout in recurrent[1]])
    assert done[1:, 0].any() and done[:, 1:-1].any() and done[:, -1].any()
    assert (~done[1:, 0]).any()
    assert len({tuple(row) for row in done.flatten(0, 1).tolist()}) > 3  # columns reset apart


@torch.no_grad()
def test_replaying_a_rollout_reproduces_its_logits_and_values(any_net):
    net, rollouts = any_net
    for rollout in rollouts:
        outputs, _ = net(rows_of(rollout), core_state_of(rollout))
        for name in ("policy_logits", "baseline"):
            torch.testing.assert_close(rollout[name], outputs[name], **CLOSE)
            assert rollout[name].std() > 0.01  # else there would be nothing to compare


@torch.no_grad()
def test_replaying_a_rollout_reproduces_the_next_ones_state(recurrent):
    """Its state is the one after rows 0..T-1, before row T's own step and reset."""
    net, rollouts, _ = recurrent
    for rollout, after in zip(rollouts, rollouts[1:], strict=False):
        _, state = net({k: v[:-1] for k, v in rows_of(rollout).items()}, core_state_of(rollout))
        for seen, expected in zip(core_state_of(after), state, strict=True):
            torch.testing.assert_close(seen, expected, **CLOSE)


def test_row_T_is_row_0_of_the_next_rollout_bit_for_bit(any_net):
    _, rollouts = any_net
    for rollout, after in zip(rollouts, rollouts[1:], strict=False):
        for name, value in rows_of(rollout).items():
            assert value[-1].numpy().tobytes() == after[name][0].numpy().tobytes(), name


def test_a_rollouts_state_is_the_one_given_to_forward_at_its_row_0(recurrent):
    net, rollouts, given = recurrent
    assert len(given) == 1 + ROLLOUTS * T  # one forward for each row
    for k, rollout in enumerate(rollouts):
        for seen, expected in zip(core_state_of(rollout), given[k * T], strict=True):
            assert torch.equal(seen, expected)
    assert all(state.eq(1).all() for state in core_state_of(rollouts[0]))
    assert not torch.equal(rollouts[1]["core_state/0"], rollouts[0]["core_state/0"])


@torch.no_grad()
def test_done_resets_to_the_initial_state_and_not_to_zeros(recurrent):
    """At a `done` the outputs are those of the row alone, from ones, whatever was before."""
    net, rollouts, _ = recurrent
    differs = 0
    for rollout in rollouts:
        rows = rows_of(rollout)
        for t, column in rollout["done"].nonzero().tolist():
            alone = {k: v[t : t + 1, column : column + 1] for k, v in rows.items()}
            first, _ = net(alone, net.initial_state(1))
            expected = first["policy_logits"][0, 0]
            torch.testing.assert_close(rollout["policy_logits"][t, column], expected, **CLOSE)
            not_done = {**alone, "done": torch.zeros(1, 1, dtype=torch.bool)}
            zeros = tuple(torch.zeros_like(state) for state in net.initial_state(1))
            from_zeros, _ = net(not_done, zeros)
            differs += not torch.allclose(from_zeros["policy_logits"][0, 0], expected, atol=1e-2)
    assert differs > 0


def test_an_action_leads_to_the_next_row(any_net):
    """It is what the environment saw, and the next row's last_action; 0 at a reset."""
    for rollout in any_net[1]:
        action, done = rollout["action"][:-1], rollout["done"][1:]
        assert torch.equal(rollout["last_action"][1:], action.masked_fill(done, 0))
        seen = rollout["frame"][1:, :, 1]
        assert torch.equal(seen, action.float().masked_fill(done, -1.0))


def test_policy_version_is_of_the_weights_that_chose_the_action(any_net):
    """So row 0, chosen when it was row T of the rollout before, carries the version before."""
    for k, rollout in enumerate(any_net[1]):
        assert rollout["policy_version"].dtype == torch.int64
        assert rollout["policy_version"][1:].eq(k + 1).all()
        assert rollout["policy_version"][0].eq(k).all()


def test_an_actors_very_first_row_carries_the_version_that_it_copied():
    """After a resume, or in an actor that replaces another, that is not 0."""
    flags = make_flags()
    with contextlib.closing(monobeast.make_environment(flags)) as env:
        net = models.make_net(monobeast.Net, env.spec, flags)
    _, shapes = monobeast.describe(flags)
    buffers = SharedTensors({k: ((1, *shape), dtype) for k, (shape, dtype) in shapes.items()})
    times = ActorTimes(1)
    weights = SharedWeights(net.state_dict(), 7)
    full, outbox = Pipe(duplex=False)
    slots = iter([(0).to_bytes(4, "little")])
    threads = torch.get_num_threads()
    monobeast.act(slots, outbox, 0, 1, flags, buffers, weights, times)
    torch.set_num_threads(threads)
    assert int.from_bytes(full.recv_bytes(), "little") == 0
    assert buffers["policy_version"][0].eq(7).all()
    for memory in (buffers, times, weights):
        memory.close()


def test_actions_and_outputs_of_the_nets_own_pass_through():
    """Into the environment, the rollout, and back into the loss; also a further observation key."""

    class WithExtra(Counting):
        observation_space = Dict(frame=Counting.observation_space, extra=Box(0, 9, (2,), np.int16))

        def _show(self, action):
            return {"frame": super()._show(action), "extra": np.array([self._count, 1], np.int16)}

    actor = make_actor(RuleNet, "--use_lstm", create_env=WithExtra)
    for rollout in make_rollouts(actor):
        count = rollout["frame"][..., 0]
        assert rollout["action"].dtype == torch.int64
        assert torch.equal(rollout["action"], (count.long() + 1) % A)
        assert torch.equal(rollout["features"], rollout["frame"] * 2)
        assert rollout["count"].dtype == torch.int32
        assert torch.equal(rollout["count"], count.int())
        assert rollout["extra"].dtype == torch.int16
        assert torch.equal(rollout["extra"][..., 0], count.short())
        loss = learner.compute_loss(actor.net, rollout, make_flags("--use_lstm"))
        assert torch.isfinite(loss.total) and loss.total.requires_grad


def test_an_initial_state_may_be_learned():
    actor = make_actor(LearnedNet, "--use_lstm")
    for rollout in make_rollouts(actor):
        assert not any(tensor.requires_grad for tensor in rollout.values())
        learner.compute_loss(actor.net, rollout, make_flags("--use_lstm")).total.backward()
    assert actor.net.first.grad.abs().sum() > 0


def test_a_networks_first_call_is_no_step_of_an_environment():
    """--compile makes it long, and --step_timeout is for environments."""
    clock, latencies = monobeast.stopwatches()
    timed = []

    class SlowNet(monobeast.Net):
        def forward(self, inputs, core_state=()):
            timed.append(clock._call_began[0] > 0)
            return super().forward(inputs, core_state)

    env = Environment(Counting, N, "counting")
    net = models.make_net(SlowNet, env.spec, make_flags())
    clock.begin_call()
    monobeast.Actor(env, net, 1, make_flags(), clock, latencies)
    assert timed == [False]


def test_actions_are_sampled_from_the_policy_or_are_its_mode():
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    columns = 30_000

    class Fixed(nn.Module):
        distribution = Categorical(3)

        def forward(self, inputs, core_state):
            shape = (1, columns, 3)
            logits = probabilities.log().bfloat16().expand(shape)
            return {"policy_logits": logits, "baseline": torch.zeros(shape[:2])}, core_state

    torch.manual_seed(0)
    outputs, state = act_on(Fixed(), {"done": torch.zeros(columns)}, ())
    assert state == () and outputs["action"].dtype == torch.int64
    assert outputs["policy_logits"].dtype == torch.float32
    shares = torch.bincount(outputs["action"], minlength=3) / columns
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=0.015)
    outputs, _ = act_on(Fixed(), {"done": torch.zeros(columns)}, (), greedy=True)
    assert outputs["action"].eq(0).all()


@pytest.mark.parametrize("state_count", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_unroll_is_a_plain_loop_over_time(share, state_count):
    T, B, F, H, layers = 11, 4, 3, 5, 2
    torch.manual_seed(state_count)
    core = nn.LSTM(F, H, layers)
    if state_count == 1:
        gru = nn.GRU(F, H, layers)
        core = lambda x, state: (lambda y, h: (y, (h,)))(*gru(x, *state))
    inputs, done = torch.randn(T, B, F), torch.rand(T, B) < share
    random_state = lambda: tuple(torch.randn(layers, B, H) for _ in range(state_count))
    given, initial = random_state(), random_state()
    state, expected = given, []
    for t in range(T):
        state = tuple(s.clone() for s in state)
        for b in range(B):
            for s, i in zip(state, initial, strict=True):
                if done[t, b]:
                    s[:, b] = i[:, b]
        output, state = core(inputs[t : t + 1], state)
        expected.append(output[0])
    untouched = copy.deepcopy((given, initial))
    seen, seen_state = models.unroll(core, inputs, done, given, initial)
    torch.testing.assert_close(seen, torch.stack(expected))
    assert isinstance(seen_state, tuple) and len(seen_state) == state_count
    for s, e in zip(seen_state, state, strict=True):
        torch.testing.assert_close(s, e)
    for s, e in zip(given + initial, untouched[0] + untouched[1], strict=True):
        assert torch.equal(s, e)


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
def test_unroll_takes_either_precision_on_any_processor(device):
    """Where a processor does not compute in bf16, oneDNN refuses to run an LSTM in it; a GPU would
    do it in float16."""
    torch.manual_seed(0)
    core, inputs, done = nn.LSTM(8, 8), torch.randn(5, 3, 8), torch.rand(5, 3) < 0.3
    core, inputs, done = core.to(device), inputs.to(device), done.to(device)
    state = (torch.randn(1, 3, 8, device=device), torch.randn(1, 3, 8, device=device))
    seen = {}
    for precision in ("fp32", "bf16"):
        with models.autocast(precision, torch.device(device)):
            output, _ = models.unroll(core, inputs, done, state, state)
        assert output.dtype != torch.float16
        seen[precision] = output.float()
    torch.testing.assert_close(seen["bf16"], seen["fp32"], rtol=0.05, atol=0.05)


def test_no_gradient_crosses_a_reset():
    """An episode's outputs do not depend on what came before it."""
    torch.manual_seed(0)
    core, inputs = nn.LSTM(3, 5), torch.randn(6, 2, 3, requires_grad=True)
    done = torch.zeros(6, 2, dtype=torch.bool)
    done[3, 0] = True
    zeros = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
    output, _ = models.unroll(core, inputs, done, zeros, zeros)
    output[3:].sum().backward()
    assert inputs.grad[:3, 0].eq(0).all() and inputs.grad[:3, 1].ne(0).any()


@pytest.mark.parametrize(
    "shape, dtype",
    [((4,), "float32"), ((2, 3), "float32"), ((4, 10, 10), "bool"), ((3, 7, 9), "uint8"),
     ((4, 84, 84), "uint8"), ((1, 36, 40), "float32")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("lstm", [[], ["--use_lstm"]], ids=["feed-forward", "lstm"])
def test_net_builds_for_every_observation_and_keeps_the_contract(shape, dtype, lstm):
    T, B, A = 2, 3, 6
    spec = Spec("some", B, {"frame": (shape, dtype)}, Actions("discrete", (A,)))
    flags = make_flags(*lstm)
    net = models.make_net(monobeast.Net, spec, flags)
    frame = np.random.default_rng(0).integers(0, 2, (T, B, *shape)).astype(dtype)
    inputs = {
        "frame": torch.from_numpy(frame),
        "reward": torch.full((T, B), 1e6),
        "done": torch.tensor([[True] * B, [False] * B]),
        "last_action": torch.zeros(T, B, dtype=torch.int64),
    }
    state = net.initial_state(B)
    assert isinstance(state, tuple) and bool(state) == bool(lstm)
    outputs, after = net(inputs, state)
    assert outputs["policy_logits"].shape == (T, B, A) and outputs["baseline"].shape == (T, B)
    assert all(output.dtype == torch.float32 for output in outputs.values())
    assert [s.shape for s in after] == [s.shape for s in state]
    assert all(s.ndim == 3 and s.shape[1] == B for s in state)
    assert not any(isinstance(p, nn.UninitializedParameter) for p in net.parameters())
    for output in outputs.values():  # a reward of a million is clipped on the way in
        assert output.detach().abs().max() < 100
    copied = models.make_net(monobeast.Net, spec, flags)
    copied.load_state_dict(net.state_dict())
    assert torch.equal(copied(inputs, state)[0]["baseline"], outputs["baseline"])


def test_net_is_torchbeasts_shallow_network_on_atari():
    """conv 32x8x8/4, 64x4x4/2, 64x3x3/1, fc 512; the LSTM: two layers of the whole width."""
    spec = Spec("atari", 1, {"frame": ((4, 84, 84), "uint8")}, Actions("discrete", (6,)))
    net = models.make_net(monobeast.Net, spec, make_flags("--use_lstm"))
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    convolutions = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert shapes[:4] == [*convolutions, (512, 64 * 7 * 7)]
    assert (net.core.num_layers, net.core.hidden_size) == (2, 512 + 1 + 6)


@torch.no_grad()
def test_bytes_are_scaled_and_other_numbers_are_not():
    net_of = lambda dtype: models.make_net(
        monobeast.Net,
        Spec("some", 1, {"frame": ((4,), dtype)}, Actions("discrete", (A,))),
        make_flags(),
    )
    of_bytes, of_floats = net_of("uint8"), net_of("float32")
    of_floats.load_state_dict(of_bytes.state_dict())
    rows = {k: torch.zeros(1, 1) for k in ("reward", "done")}
    rows["last_action"] = torch.zeros(1, 1, dtype=torch.int64)
    frame = torch.tensor([[[0, 51, 204, 255]]], dtype=torch.uint8)
    seen, _ = of_bytes({**rows, "frame": frame})
    expected, _ = of_floats({**rows, "frame": torch.tensor([[[0, 0.2, 0.8, 1.0]]])})
    torch.testing.assert_close(seen["baseline"], expected["baseline"])


SPEC = Spec("some", 1, {"frame": ((4,), "float32")}, Actions("discrete", (A,)))


def test_net_flag_takes_another_class():
    net = models.make_net(monobeast.Net, SPEC, make_flags("--net", f"{__name__}.RuleNet"))
    assert type(net).__name__ == "RuleNet"
    assert type(models.make_net(monobeast.Net, SPEC, make_flags())) is monobeast.Net


@pytest.mark.parametrize(
    "name",
    ["Net", "nosuchmodule.Net", "monobeast.NoSuchNet", "monobeast.", ".Net", "./monobeast.py",
     "os.path", "json.dumps", f"{__name__}.not_a_net"],
)  # fmt: skip
def test_net_flag_that_names_no_class_is_a_users_error(name):
    with pytest.raises(UserError, match=f"--net: expected MODULE.CLASS.*seen '{name}'"):
        models.make_net(monobeast.Net, SPEC, make_flags("--net", name))


@pytest.mark.parametrize("net", ["monobeast.Net", "polybeast.Net"])
def test_an_image_with_the_channels_last_is_a_users_error(net):
    spec = lambda *shape: Spec("some", 1, {"frame": (shape, "uint8")}, Actions("discrete", (A,)))
    models.make_net(monobeast.Net, spec(3, 40, 40), make_flags("--net", net))
    with pytest.raises(UserError, match=r"\[40, 40, 3\]: expected an image \[C, H, W\]"):
        models.make_net(monobeast.Net, spec(40, 40, 3), make_flags("--net", net))


def test_a_core_that_the_network_lacks_is_a_users_error():
    models.make_net(FeedForwardNet, SPEC, make_flags())
    with pytest.raises(UserError, match="--use_lstm: .*FeedForwardNet has no recurrent core"):
        models.make_net(FeedForwardNet, SPEC, make_flags("--use_lstm"))


def test_a_compiled_network_computes_the_same_and_keeps_its_names(monkeypatch):
    """With torch's compiler, but not its slow generation of code."""
    seen, compile_ = [], nn.Module.compile
    backend = lambda graph, inputs: seen.append(graph) or graph.forward
    monkeypatch.setattr(
        nn.Module, "compile", lambda net, **kw: compile_(net, backend=backend, **kw)
    )
    flags = make_flags("--compile")
    plain = models.make_net(monobeast.Net, SPEC, flags)
    net = models.compile_if_asked(copy.deepcopy(plain), flags)
    assert models.compile_if_asked(plain, make_flags()) is plain and type(net) is monobeast.Net
    inputs = {
        "frame": torch.rand(T, N, 4),
        "reward": torch.rand(T, N),
        "done": torch.zeros(T, N, dtype=torch.bool),
        "last_action": torch.zeros(T, N, dtype=torch.int64),
    }
    expected, outputs = plain(inputs)[0], net(inputs)[0]
    assert seen and net.state_dict().keys() == plain.state_dict().keys()
    for name in expected:
        torch.testing.assert_close(outputs[name], expected[name])
