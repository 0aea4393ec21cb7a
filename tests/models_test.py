# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What networks are made of, and how they are made and called."""

import copy
import dataclasses
import math
import re
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch
from torch import nn

import monobeast
import polybeast
import r2d2
from libtorchbeast import models
from libtorchbeast.distributions import MASKED, Categorical
from libtorchbeast.flags import UserError
from libtorchbeast.models import act_on, forward
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import A, N, RuleNet, T, make_flags
from tests.support.compare import assert_same
from tests.support.gpu import GPU


class FeedForwardNet(monobeast.Net):
    """A network without a core, as a fork may have."""

    def initial_state(self, batch_size):
        return ()


not_a_net = {"Net": monobeast.Net}  # for --net


def test_actions_are_sampled_from_the_policy_or_are_its_mode():
    probabilities, columns = torch.tensor([0.5, 0.3, 0.2]), 30_000

    class Fixed(nn.Module):
        distribution = Categorical(3)

        def forward(self, inputs, core_state):
            logits = probabilities.log().bfloat16().expand(1, columns, 3)
            return {"policy_logits": logits, "baseline": torch.zeros(1, columns)}, core_state

    torch.manual_seed(0)
    outputs, state = act_on(Fixed(), {"done": torch.zeros(1, columns)}, ())
    assert state == () and outputs["action"].dtype == torch.int64
    assert outputs["policy_logits"].dtype == torch.float32
    shares = torch.bincount(outputs["action"][0], minlength=3) / columns
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=0.015)
    outputs, _ = act_on(Fixed(), {"done": torch.zeros(1, columns)}, (), greedy=True)
    assert outputs["action"].eq(0).all()


def test_robots_begin_with_small_movements():
    spec = Spec("robot", 1, {"frame": ((3,), "float32")}, Actions("box", (2,)))
    net = models.make_net(models.VectorNet, spec, monobeast.parse([]))
    row = {"frame": torch.randn(1, 4000, 3), "reward": torch.zeros(1, 4000)}
    outputs, _ = act_on(net, row | {"done": torch.zeros(1, 4000).bool()}, ())
    assert outputs["action"].std().item() == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("state_count, wrapped", [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_unroll_is_a_plain_loop_over_time(share, state_count, wrapped):
    T, B, F, H, layers = 11, 4, 3, 5, 2
    torch.manual_seed(state_count)
    core = nn.LSTM(F, H, layers)
    called = core  # as the loop below calls it
    if state_count == 1:  # nn.GRU itself, or wrapped so that its state is a tuple
        gru = nn.GRU(F, H, layers)
        called = lambda x, state: (lambda y, h: (y, (h,)))(*gru(x, *state))
        core = called if wrapped else gru
    inputs, done = torch.randn(T, B, F), torch.rand(T, B) < share
    random_state = lambda: tuple(torch.randn(layers, B, H) for _ in range(state_count))
    given, initial = random_state(), random_state()
    state, expected = given, []
    for t in range(T):
        begins = done[t].view(1, B, 1)
        state = tuple(torch.where(begins, i, s) for i, s in zip(initial, state, strict=True))
        output, state = called(inputs[t : t + 1], state)
        expected.append(output[0])
    untouched = copy.deepcopy((given, initial))
    seen, seen_state = models.unroll(core, inputs, done, given, initial)
    torch.testing.assert_close(seen, torch.stack(expected))
    assert isinstance(seen_state, tuple)
    torch.testing.assert_close(seen_state, state)
    assert_same((given, initial), untouched)


@pytest.mark.parametrize("device", [torch.device("cpu"), GPU], ids=str)
def test_unroll_takes_either_precision_on_any_processor(device):
    """Where a processor does not compute in bf16, oneDNN refuses to run an LSTM in it; a GPU would
    do it in float16."""
    torch.manual_seed(0)
    core, inputs, done = nn.LSTM(8, 8), torch.randn(5, 3, 8), torch.rand(5, 3) < 0.3
    core, inputs, done = core.to(device), inputs.to(device), done.to(device)
    state = (torch.randn(1, 3, 8, device=device), torch.randn(1, 3, 8, device=device))
    seen = {}
    for precision in ("fp32", "bf16"):
        with models.autocast(Obedient(), precision, device):
            output, _ = models.unroll(core, inputs, done, state, state)
        assert output.dtype != torch.float16
        seen[precision] = output.float()
    torch.testing.assert_close(seen["bf16"], seen["fp32"], rtol=0.05, atol=0.05)


def is_bf16(net, precision):
    with models.autocast(net, precision, torch.device("cpu")):
        return torch.is_autocast_enabled("cpu")


def test_unequal_precision_makes_no_importance_weight_noisy(monkeypatch):
    """A softmax's get little noise. A Gaussian's would get much, so it always runs in float32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for kind in ("discrete", "box"):
        spec = Spec("some", 1, {"frame": ((17,), "uint8")}, Actions(kind, (6,)))
        net = models.make_net(monobeast.Net, spec, make_flags("--net", "monobeast.Net"))
        assert is_bf16(net, "auto") == (kind == "discrete") and not is_bf16(net, "fp32")
        assert is_bf16(net, "bf16")  # whoever asks for it gets it


@pytest.mark.parametrize("program", [monobeast, polybeast, r2d2])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_no_precision_merges_numbers_that_float32_tells_apart(program, dtype):
    """bf16 has 8 bits, which are enough for the bytes of an image alone."""
    parts = {"image": ((1, 10, 10), "uint8"), "number": ((), dtype)}
    flags = make_flags("--precision", "bf16", "--core", "lstm")
    spec = Spec("some", 1, parts, Actions("discrete", (3,)))
    assert not is_bf16(models.make_net(program.Net, spec, flags), "bf16")
    del parts["number"]
    assert is_bf16(models.make_net(program.Net, spec, flags), "bf16")


SPEC = Spec("some", 1, {"frame": ((4,), "float32")}, Actions("discrete", (A,)))


def test_net_flag_takes_another_class_or_is_a_users_error_as_is_a_core_that_the_class_lacks():
    net = models.make_net(monobeast.Net, SPEC, make_flags("--net", f"{RuleNet.__module__}.RuleNet"))
    assert type(net).__name__ == "RuleNet"
    assert type(models.make_net(FeedForwardNet, SPEC, make_flags())) is FeedForwardNet
    none = "Net nosuchmodule.Net monobeast.NoSuchNet .Net ./monobeast.py os.path".split()
    for name in (*none, f"{__name__}.not_a_net"):
        with pytest.raises(UserError, match=f"--net: expected MODULE.CLASS.*seen '{name}'"):
            models.make_net(monobeast.Net, SPEC, make_flags("--net", name))
    with pytest.raises(UserError, match="FeedForwardNet has no recurrent state, which --core and"):
        models.make_net(FeedForwardNet, SPEC, make_flags("--use_lstm"))


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_the_running_programs_network_has_the_programs_name_also_in_its_actors(monkeypatch, module):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("monobeast", None))
    monkeypatch.setattr(FeedForwardNet, "__module__", module)
    assert models.name_of(models.make_net(FeedForwardNet, SPEC, make_flags())) == (
        "monobeast.FeedForwardNet"
    )


def made(net, observations):
    spec = Spec("some", 1, observations, Actions("discrete", (A,)))
    return models.make_net(monobeast.Net, spec, make_flags("--net", net))


NETS = ["monobeast.Net", "polybeast.Net"]


def test_bytes_with_the_channels_last_are_read_as_those_with_the_channels_first():
    """Alone and in stacks; what may be no image, such as a table, is not moved."""
    shapes = {"screen": (40, 48, 3), "stack": (2, 40, 48, 1)}
    spec = lambda shapes: Spec(
        "x", N, {k: (shape, "uint8") for k, shape in shapes.items()}, Actions("discrete", (A,))
    )
    with_table = spec(shapes | {"table": (4, 4, 3)})
    assert [*with_table.images.values()] == [(3, 40, 48), (2, 1, 40, 48), (4, 4, 3)]
    assert with_table.has_large_images
    with pytest.raises(UserError, match=r"table \[4, 4, 3\]: expected an image \[C, H, W\]"):
        models.Parts(with_table)
    last, first = spec(shapes), spec({"screen": (3, 40, 48), "stack": (2, 1, 40, 48)})
    rows = {k: torch.randint(256, (3, 2, *s), dtype=torch.uint8) for k, s in shapes.items()}
    moved = {k: x.movedim(-1, -3) for k, x in rows.items()}
    reward = {"reward": torch.zeros(3, 2)}
    both = models.Parts(last), models.Parts(first)
    assert both[0].image_shape == both[1].image_shape == (5, 40, 48)
    assert torch.equal(both[0](rows | reward)[0], both[1](moved | reward)[0])
    made("monobeast.Net", last.observations)


@pytest.mark.parametrize("net", NETS)
def test_another_image_with_the_channels_last_is_a_users_error(net):
    for name, shape in (("frame", (40, 40, 3)), ("s", (4, 40, 40, 3))):
        observations = {name: (shape, "float32"), "health": ((1,), "float32")}
        text = rf"{name} \[.* 3\]: expected an image \[C, H, W\].*in create_env of monobeast.py, or"
        with pytest.raises(UserError, match=text):
            made(net, observations)


def test_channels_that_are_last_are_found_and_those_that_are_first_are_taken():
    for shape in ((64, 48, 2), (64, 64, 9), (84, 84, 12), (10, 10, 7), (240, 320, 3)):
        text = rf"frame {re.escape(str(list(shape)))}: expected an image \[C, H, W\]"
        with pytest.raises(UserError, match=text):
            models.check_image(shape)
        models.check_image((shape[2], *shape[:2]))
    for shape in ((16, 20, 10), (9, 6, 7), (12, 64, 64), (8, 7, 7), (64, 9), (30, 10, 2)):
        models.check_image(shape)


MIXED = {
    "grey": ((40, 48), "uint8"),
    "health": ((2, 3), "float32"),
    "screen": ((3, 40, 48), "uint8"),
    "stack": ((2, 3, 40, 48), "float32"),
    "ammo": ((), "int64"),
}


@pytest.mark.parametrize("net", NETS)
def test_images_are_read_with_convolutions_and_all_else_as_a_vector(net):
    """A linear layer on all pixels would have 29 million weights."""
    net = made(net, MIXED | {"action_mask": ((A,), "int8")})
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    assert first.in_channels == 1 + 3 + 6
    assert sum(weight.numel() for weight in net.parameters()) < 10**6
    row = lambda shape, dtype: torch.randint(0, 9, (T, N, *shape)).to(getattr(torch, dtype))
    rows = {name: row(*leaf) for name, leaf in MIXED.items()}
    rows |= {"reward": torch.zeros(T, N), "last_action": torch.zeros(T, N, dtype=torch.int64)}
    rows["done"] = torch.zeros(T, N, dtype=torch.bool)
    before = net.forward(rows)[0]["baseline"]
    for name in MIXED:
        other = net.forward(rows | {name: rows[name] + 1})[0]["baseline"]
        assert other.ne(before).all(), name


def test_numbers_of_a_set_are_one_hot():
    """In any integers; a number that is not of the set has zeros, as if there was none."""
    leaves = {"pair": ((2,), "int64"), "x": ((3,), "float32"), "suit": ((), "int32")}
    spec = Spec("cards", N, leaves, Actions("discrete", (A,)), sets={"pair": 3, "suit": 4})
    rows = {"pair": torch.tensor([[[2, 0], [3, -1]]]), "suit": torch.tensor([[1, 4]])}
    rows |= {"x": torch.ones(1, 2, 3), "reward": torch.zeros(1, 2)}
    image, vector = models.Parts(spec)(rows)
    assert image is None and vector.dtype == torch.float32
    both = [[0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0], [0] * 6 + [1] * 3 + [0] * 4]
    assert vector.tolist() == both
    unsigned = models.Parts(spec)(rows | {"suit": rows["suit"].to(torch.uint16)})[1]
    assert torch.equal(unsigned, vector)
    plain = dataclasses.replace(spec, sets={})
    assert spec.signature() != plain.signature()  # another --eval_env is refused
    assert spec.codes == [] and not models.Parts(spec).fits_bf16
    only = Spec("cards", N, {"suit": leaves["suit"]}, spec.actions, sets=spec.sets)
    assert models.Parts(only).fits_bf16 and models.Parts(only).width == 4 and not only.has_vectors


def test_what_the_loss_alone_reads_changes_neither_the_network_nor_the_recipe():
    table, own = {"frame": ((4, 4), "uint8")}, {"loss/visits": ((), "float32")}
    same = Spec("some", N, table | own, Actions("discrete", (A,)))
    assert not same.has_vectors and same.for_nets.observations == table
    flags = make_flags("--observation_scaling", "moments", "--reward_scaling", "none")
    with_it, without = (
        models.make_net(monobeast.Net, spec, flags) for spec in (same, same.for_nets)
    )
    shapes = lambda net: {name: x.shape for name, x in net.state_dict().items()}
    assert shapes(with_it) == shapes(without)


def test_one_image_alone_and_one_vector_alone_keep_their_parameters():
    """Checkpoints of older versions have these names."""
    image, vector = (made("monobeast.Net", {"frame": (s, "uint8")}) for s in ((2, 9, 9), (5, 4)))
    assert image.trunk[0].weight.shape == (16, 2, 3, 3) and image.fc[0].in_features == 16 * 7 * 7
    assert vector.trunk[1].weight.shape == (128, 20) and vector.fc[0].in_features == 128
    grey = made("monobeast.Net", {"frame": ((64, 64), "uint8")})
    assert grey.trunk[0].weight.shape == (32, 1, 8, 8)
    mask = made("monobeast.Net", {"action_mask": ((A,), "int8")})
    assert mask.trunk[1].weight.shape == (128, A)


def test_images_of_several_sizes_and_many_other_parts_are_read():
    """These are parts of NetHack's observation. Most are too flat for an image."""
    leaves = {
        "glyphs": ((21, 79), "int16"), "blstats": ((27,), "int64"),
        "inv_strs": ((55, 80), "uint8"), "descriptions": ((21, 79, 80), "uint8"),
    }  # fmt: skip
    parts = models.Parts(Spec("some", 1, leaves, Actions("discrete", (A,))))
    assert parts.image_shape == (22, 79, 80) and parts.width == 21 * 79 + 27
    row = {k: torch.ones(1, 1, *shape, dtype=getattr(torch, d)) for k, (shape, d) in leaves.items()}
    image, _ = parts(row | {"reward": torch.zeros(1, 1)})
    assert image.shape == (1, 22, 79, 80) and image.eq(1 / 255).all()


def test_a_compiled_network_computes_the_same_and_keeps_its_names(monkeypatch):
    seen, compile_ = [], nn.Module.compile
    backend = lambda graph, inputs: seen.append(graph) or graph.forward
    compile_so = lambda net, **options: compile_(net, backend=backend, **options)
    monkeypatch.setattr(nn.Module, "compile", compile_so)
    flags = make_flags("--compile")
    plain = models.make_net(FeedForwardNet, SPEC, flags)
    net = models.compile_if_asked(copy.deepcopy(plain), flags)
    assert models.compile_if_asked(plain, make_flags()) is plain and type(net) is FeedForwardNet
    zeros = torch.zeros(T, N)
    inputs = {"frame": torch.rand(T, N, 4), "reward": torch.rand(T, N), "done": zeros.bool()}
    inputs["last_action"] = zeros.long()
    expected, outputs = plain(inputs)[0], net(inputs)[0]
    assert seen and net.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(outputs, expected)


class Obedient(nn.Module):
    """A network that gives action 0 almost all of the probability."""

    distribution = Categorical(4)

    def forward(self, inputs, core_state):
        shape = inputs["action_mask"].shape[:2]
        logits = torch.tensor([50.0, 0, 0, 0]).expand(*shape, 4)
        return {"policy_logits": logits, "baseline": torch.zeros(shape)}, core_state


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_forbidden_action_is_never_taken_and_nothing_becomes_infinite(dtype, greedy):
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).to(dtype)
    for _ in range(20):
        outputs, _ = act_on(Obedient(), {"action_mask": mask[None]}, (), greedy)
        allowed = outputs["action"][0].tolist()
        assert allowed[0] in (1, 3) and allowed[1] == 2 and allowed[2] == 0
    learned, _ = forward(Obedient(), {"action_mask": mask[None]}, ())
    assert learned["policy_logits"].equal(outputs["policy_logits"])
    logits = outputs["policy_logits"][0]
    assert logits.isfinite().all() and logits[0, 0] == MASKED
    entropy = Categorical(4).entropy(logits)
    assert entropy[0].item() == pytest.approx(math.log(2)) and entropy[1] == 0
    assert entropy[3].item() == pytest.approx(math.log(4))  # of a row that nobody acts on


def test_images_of_16_bits_are_scaled_like_bytes():
    dark = torch.tensor([0, 1, 65535], dtype=torch.int32).to(torch.uint16).view(3, 1, 1, 1)
    expected = torch.tensor([0, 1 / 65535, 1])
    torch.testing.assert_close(models.as_floats(dark).flatten(), expected)
