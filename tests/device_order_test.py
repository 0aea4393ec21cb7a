# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The order of events on a device: a simulated one sees what is right, and each of many mistakes.
Also how many kernels, copies and waits an update and an inference batch cost."""

import copy
import functools
import io
import math
import types

import pytest
import torch

import monobeast
import polybeast
import r2d2
from libtorchbeast import learner, weights
from libtorchbeast.accelerator import devices, graphs
from libtorchbeast.accelerator.devices import CPU, Event, device_stream, tensors_in, to_device
from libtorchbeast.flags import UserError
from libtorchbeast.models import add_for_loss, initial_state, make_net
from libtorchbeast.rollouts import batches
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.update import Updater
from libtorchbeast.weights import SharedWeights
from tests.support import monobeast as mono
from tests.support import polybeast as poly
from tests.support import simulated_device as sim
from tests.support.actors import make_actor, make_flags, make_learner, make_rollouts
from tests.support.compare import assert_same
from tests.support.device_life import BATCH_SIZE, Batch, Life
from tests.support.ranks import in_threads
from tests.support.simulated_device import DEVICE, OTHER
from tests.support.small_q_net import random_batch

pytestmark = sim.needs_simulated_device


# The learning rate falls much in each of a few updates, and all gradients are clipped.
FALLING = "--total_steps 60 --entropy_schedule constant --grad_norm_clipping 0.1".split()
GRAPHS = 3  # of an update: gradients, clipping, step
CASES = {"lstm": ["--use_lstm"], "mingru": ["--core", "mingru"], "": [], "falling": FALLING}


@pytest.fixture
def prepared(monkeypatch):
    """A lock of the learner hands on what a thread has waited for. Graphs are recorded at the
    second call, and compared with their function at no later one."""
    monkeypatch.setattr(learner, "threading", types.SimpleNamespace(RLock=sim.RLock))
    monkeypatch.setattr(graphs, "WARM_UP", 1)
    monkeypatch.setattr(graphs, "CHECKED", 1)


@pytest.fixture
def simulated(prepared):
    with sim.installed():
        yield


@pytest.fixture(scope="module")
def on_the_cpu():
    return {case: Life(CPU, CPU, *words).live() for case, words in CASES.items()}


assert_close = functools.partial(assert_same, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case, acting", [("", DEVICE), ("", OTHER), ("falling", CPU),
                                          ("lstm", DEVICE), ("mingru", OTHER)])  # fmt: skip
def test_learning_and_acting_are_in_order_and_give_what_the_cpu_gives(
    simulated, on_the_cpu, case, acting, caplog
):
    life = Life(DEVICE, acting, *CASES[case])
    assert_close(life.live(), on_the_cpu[case])
    is_recurrent = case in ("lstm", "mingru")
    replays = (acting != CPU) * (12 - 2) + (not is_recurrent) * GRAPHS * (4 - 1)
    assert sim.counts["graphs"] == replays  # of batches and updates
    assert life.learner.graphs.startswith("no (the network is recurrent" if is_recurrent else "yes")
    assert not any(record.levelname == "WARNING" for record in caplog.records)


def test_passes_and_moments_by_graphs_give_what_the_cpu_gives(simulated):
    """Two passes over each batch in two parts, and an entropy cost that falls."""
    words = "--passes 2 --minibatches 2 --ppo_clip 0.2 --observation_scaling moments "
    words += "--reward_scaling returns --total_steps 60 --entropy_schedule linear"
    lives = [Life(device, CPU, *words.split()) for device in (CPU, DEVICE)]
    expected, seen = (life.live() for life in lives)
    assert_same(seen, expected, rtol=1e-4, atol=1e-5)
    assert sim.counts["graphs"] > 20 and lives[1].learner.graphs.startswith("yes")
    assert expected[-1]["model"]["moments.count"] > 20


# ============================================================================= deliberate mistakes
class NeverWaits(Event):
    def wait(self):
        pass


def without_the_reward(value, device):
    there = to_device(value, device)
    return there | {"reward": value["reward"]}


# Each kind of disorder that the simulated device sees, once: what is replaced, and by what.
MISTAKES = {
    "the host does not wait for answers": (sim.Stream, "synchronize", lambda stream: None),
    "new weights are not waited for": (weights, "Event", NeverWaits),
    "the memory of old weights is reused": (weights, "use_in_this_stream", lambda tensors: None),
    "the other learner's update is not waited for": (learner, "Event", NeverWaits),
    "the reward stays on the host": (learner, "to_device", without_the_reward),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(prepared, monkeypatch, on_the_cpu, mistake):
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises((RuntimeError, AssertionError, UserError)), sim.installed():
        assert_close(Life(DEVICE, DEVICE, "--use_lstm").live(), on_the_cpu["lstm"])


def test_page_locked_memory_that_is_filled_again_too_early_is_seen(simulated):
    """The next batch overwrites the one before, for whose copy nobody has waited."""
    slab = devices.Slab({"x": ((3,), torch.float32)}, DEVICE)
    for number in range(2):
        slab["x"].fill_(number)
        to_device(slab, DEVICE)
    with pytest.raises(sim.Race, match="page-locked memory changed"):
        sim.finish()


def test_a_batch_without_a_transition_is_not_overwritten_while_it_is_copied(simulated):
    """Its update ends before anybody has waited for the copy."""
    life = Life(DEVICE, DEVICE)
    life.rollouts[0]["done"][1:] = True
    for _ in range(2):
        life.learn(0)
    assert life.learner.updates == 1


@pytest.mark.parametrize("optimizer, is_rank", [("rmsprop", False), ("adam", True)])
def test_updates_by_graphs_are_skipped_and_resumed_on_any_device(simulated, optimizer, is_rank):
    """A run on the CPU, on the device, where it also begins again from its own state, and on the
    CPU, with batches of NaN, gives what one on the CPU gives."""
    argv = [*FALLING, "--total_steps", "200", "--optimizer", optimizer]
    actor, flags = make_actor(monobeast.Net, *argv), make_flags(*argv)
    rollouts = make_rollouts(actor, 2)
    broken = {k: v.clone() for k, v in rollouts[1].items()}
    broken["policy_logits"][:] = math.nan

    def learned(state, device, of_ranks=None):
        one = make_learner(copy.deepcopy(actor.net), flags, device, ranks=of_ranks)
        if state is not None:
            one.load_state_dict(state)
        with device_stream(device):
            for rollout in (*rollouts, broken, *rollouts):
                (batch,) = batches([(rollout, lambda: None)], BATCH_SIZE, device)
                one.update(batch, lambda state_dict, version: None)
        return one.state_dict()

    def lived(*devices):
        state = None
        for device in devices:
            work = functools.partial(learned, state, device)
            (state,) = in_threads(1, work) if is_rank else [work()]
        return state

    expected = lived(CPU, CPU, CPU, CPU)
    assert sim.counts["graphs"] == 0
    assert_close(lived(CPU, DEVICE, DEVICE, CPU), expected)
    assert expected["updates"] == 16 and expected["skipped"] == 4
    replays = 2 * sum(calls - 1 for calls in (5, 5, 4))  # of two learners on the device
    assert sim.counts["graphs"] == replays


def test_a_state_that_is_loaded_between_updates_is_learned_on(simulated):
    """As the states of ranks whose weights differ are. The averages are then in other memory."""
    states = []
    for device in (CPU, DEVICE):
        life = Life(device, CPU, *FALLING)
        for number in (0, 1, 0, 1):
            life.learn(number)
            if life.learner.updates == 2:
                life.learner.load_state_dict(life.learner.state_dict())
        states.append(life.learner.state_dict())
    assert_close(states[1], states[0])
    assert states[0]["updates"] == 4 and sim.counts["graphs"] == 2 * GRAPHS


def test_tensors_of_all_kinds_go_there_and_back_in_one_copy(simulated):
    """Odd sizes, no elements, one number, other strides, and what is no tensor."""
    rows = {
        "bytes": torch.arange(7, dtype=torch.uint8),
        "none": torch.zeros(0, 3),
        "number": torch.tensor(5.5, dtype=torch.float64),
        "turned": torch.randn(3, 5).t(),
        "half": torch.randn(3).bfloat16(),
        "nested": [torch.tensor([2**40]), (torch.tensor([[True], [False]]), "word")],
    }
    there = to_device((rows, ()), DEVICE)
    assert sim.counts == {"to_device": 1}
    assert there[0]["turned"].device == DEVICE and there[0]["nested"][1][1] == "word"
    back = devices.to_host(*there)
    assert sim.counts["to_host"] == sim.counts["waits"] == 1
    assert_same(back, [rows, ()])
    copy_of_both = devices.copy_to_host({"there": there[0]["bytes"], "here": rows["bytes"]})
    rows["bytes"].zero_()
    assert copy_of_both["here"].tolist() == copy_of_both["there"].tolist() == [*range(7)]
    copies = tensors_in(devices.copy_to_host(there))
    assert [x.untyped_storage().nbytes() for x in copies] == [x.nbytes for x in copies]
    torch.save(copies, io.BytesIO())  # it refuses tensors of several dtypes in one memory


# ============================================================================================ costs
def cost(function, *args, device=DEVICE):
    """How many kernels, copies and waits the function costs, in a stream of its own."""
    with device_stream(device) as stream:
        sim.counts.clear()
        function(*args)
        seen = dict(sim.counts)
        stream.synchronize()
        return seen


@pytest.mark.parametrize(
    "words, kernels, graphs, copies, updates",
    [
        ("", 7, GRAPHS, 1, 1),
        ("--use_lstm", 360, 0, 1, 1),
        # Two minibatches differ in size, so that only one is computed by graph. The moments and
        # the targets have a graph each.
        ("--passes 2 --minibatches 2 --ppo_clip 0.2 --observation_scaling moments "
         "--reward_scaling returns", 633, 2 + 4 * 2, 1 + 2, 4),
    ],
)  # fmt: skip
def test_what_an_update_and_a_checkpoint_cost(simulated, words, kernels, graphs, copies, updates):
    """One copy to the device, one more for each pass, which says what is in its minibatches, and
    one wait of the host for the loss and the norm together. Without an LSTM the kernels are in
    graphs, but for those that copy what goes in, one for each graph, and that write the two numbers
    that change in the run, and join those that the host reads."""
    life = Life(DEVICE, DEVICE, *words.split())
    (batch,) = batches([(life.rollouts[0], lambda: None)], BATCH_SIZE, DEVICE)
    for _ in range(4):
        seen = cost(life.learner.update, batch, lambda state_dict, version: None)
    assert seen.pop("kernels") <= kernels and seen.pop("graphs", 0) == graphs
    assert seen == {"to_device": copies, "to_host": updates, "waits": updates}
    assert cost(life.learner.state_dict)["waits"] <= 2


def test_what_an_update_of_r2d2_costs(simulated):
    flags = r2d2.parse("--env CartPole-v1 --burn_in 2 --precision fp32".split())
    spec = Spec("Some", 4, {"frame": ((5,), "float32")}, Actions("discrete", (3,)))
    net = make_net(r2d2.Net, spec, flags)
    batch = random_batch(net, spec, 6, 4)
    batch["done"][[1, 4], 0] = True
    add_for_loss(net, spec, flags)
    one = learner.Learner(Updater(net, flags, DEVICE, None, r2d2.targets, r2d2.loss))
    seen = cost(one.update, batch, lambda state_dict, version: None)
    assert seen.pop("kernels") <= 469 and seen == {"to_device": 1, "to_host": 1, "waits": 1}


@pytest.mark.parametrize("acting", [DEVICE, OTHER], ids=["same", "other"])
def test_handing_weights_to_inference_costs_no_wait(simulated, acting):
    life = Life(DEVICE, torch.device("sim") if acting == DEVICE else acting)  # without its number
    seen = cost(life.weights.publish, life.learner.net.state_dict(), 1)
    tensors = len(life.learner.net.state_dict())
    assert seen == ({"kernels": 1} if acting == DEVICE else {"between_devices": tensors})
    net = copy.deepcopy(make_actor(monobeast.Net).net).to(acting)
    assert cost(life.weights.copy_to, net, device=acting) == {"kernels": 1}


def test_what_an_inference_batch_costs(simulated):
    """One copy there, one graph, one copy back, one wait, with an LSTM, too. The other kernels copy
    its inputs, sample, and join the results."""
    life = Life(DEVICE, DEVICE, "--use_lstm")
    life.infer(0)
    sim.counts.clear()
    life.infer(0)  # two batches
    assert sim.counts.pop("kernels") <= 2 * 6
    assert sim.counts == {"to_device": 2, "graphs": 2, "to_host": 2, "waits": 2}


def test_what_an_inference_batch_of_r2d2_costs(simulated):
    actor = make_actor(r2d2.Net, "--use_lstm")
    (rollout,) = make_rollouts(actor, 1)
    net = actor.net.to(DEVICE)
    new = torch.full((1, BATCH_SIZE, 1), r2d2.Explorer.NEW)
    given = Batch(rollout, 0, (*initial_state(net, BATCH_SIZE), new)).inputs
    row, state = to_device(given, DEVICE)
    explorer, answers = r2d2.Explorer(BATCH_SIZE), []
    with torch.no_grad():
        seen = cost(lambda: answers.append(explorer.act(net, row, state)))
    assert seen.pop("kernels") > 0 and seen == {"to_host": 1, "waits": 1}
    ((outputs, state),) = answers
    assert state[-1].tolist() == [[[0], [1], [2]]]
    assert outputs["environment"].tolist() == [[0, 1, 2]]


def test_handing_weights_to_processes_costs_one_copy_and_one_wait(simulated):
    net = Life(DEVICE, CPU).learner.net
    shared = SharedWeights().begin(net.state_dict(), 0)
    seen = cost(shared.publish, net.state_dict(), 1)
    assert seen.pop("kernels") == 1  # which joins them
    assert seen == {"to_host": 1, "waits": 1}
    other = copy.deepcopy(make_actor(monobeast.Net).net)
    assert shared.copy_to(other) == 1
    (expected,) = devices.to_host(dict(net.state_dict()))
    assert_close(dict(other.state_dict()), expected)
    shared.close()


# ================================================================================ which device
def test_inference_goes_before_learning(simulated, monkeypatch):
    streams = []
    monkeypatch.setattr(sim.Stream, "__enter__", lambda stream: streams.append(stream))
    monkeypatch.setattr(sim.Stream, "__exit__", lambda *_: None)
    Life(DEVICE, DEVICE)  # starts two learner threads, then two inference threads
    first = devices.FIRST
    assert [stream.priority for stream in streams] == [0, 0, first, first] and first < 0


def test_without_page_locked_memory_copies_are_waited_for_which_is_said_once(
    simulated, monkeypatch, on_the_cpu, caplog
):
    """As on MPS."""
    monkeypatch.setattr(sim, "can_pin", False)
    devices.pins_memory.cache_clear()
    assert_close(Life(DEVICE, DEVICE).live(), on_the_cpu[""])
    devices.pins_memory.cache_clear()
    assert caplog.text.count("Copies to and from sim are synchronous: sim has no page-") == 1


@pytest.mark.parametrize(
    "refusal, name", [(mono.refusal, "learner_device"), (poly.refusal, "inference_device")]
)
def test_a_device_that_cannot_be_opened_or_does_not_exist_is_one_line(
    simulated, tmp_path, refusal, name
):
    """Its memory can be reserved, as on CUDA; an error shows only when it is used."""
    sim.broken.add(1)
    torch.empty(0, device=OTHER)
    broken = "expected a device that can be opened (sim:1: the driver does not answer)"
    assert refusal(tmp_path, f"--{name}", "sim:1").endswith(f"--{name} sim:1: {broken}")
    assert not (tmp_path / "run").exists()
    absent = f"expected cpu or an accelerator, and torch {torch.__version__} finds sim:0, sim:1"
    assert refusal(tmp_path, f"--{name}", "sim:2").endswith(f"--{name} sim:2: {absent}")


def test_a_gpu_is_taken_by_itself_but_not_a_macs_and_not_in_order(simulated, monkeypatch):
    flags = polybeast.parse([])
    assert (flags.learner_device, flags.inference_device) == ("sim", "sim")
    assert polybeast.parse(["--learner_device", "cpu"]).inference_device == "cpu"
    flags = monobeast.parse([])
    assert (flags.learner_device, flags.inference_device) == ("sim", "cpu")
    assert flags.num_learner_threads == 2
    flags = monobeast.parse(["--num_actors", "0"])
    assert (flags.learner_device, flags.num_learner_threads) == ("cpu", 1)
    words = ["--num_actors", "0", "--learner_device", "sim:1"]
    assert monobeast.parse(words).inference_device == "sim:1"
    with pytest.raises(UserError, match="--inference_device cpu: expected the learner's device"):
        monobeast.parse([*words, "--inference_device", "cpu"])
    mps = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=0: mps)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert monobeast.parse([]).learner_device == "cpu"
    assert polybeast.parse(["--learner_device", "mps"]).inference_device == "mps"


def test_random_states_of_devices_are_kept(simulated, caplog):
    states = devices.random_states()
    assert len(states) == 2
    changed = [state + 3 for state in states]
    devices.set_random_states(changed)
    assert_close(devices.random_states(), changed)
    devices.set_random_states(states[:1])  # of a machine with one device
    assert_close(devices.random_states(), [states[0], changed[1]])
    assert "The checkpoint has random states of 1 accelerators; 2 are used." in caplog.text
