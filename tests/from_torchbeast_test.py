# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""TorchBeast's checkpoints and logs. Its two networks are written anew here, with its names."""

import argparse
import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import monobeast
import polybeast
from libtorchbeast import checkpoint, evaluate
from libtorchbeast.flags import replace
from libtorchbeast.models import act_on
from libtorchbeast.tools import from_torchbeast, plot

A = 6  # of Pong


class AtariNet(nn.Module):
    """MonoBeast's: what its names belong to, and in which order its parts are joined."""

    def __init__(self, use_lstm):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 32, 8, 4)
        self.conv2 = nn.Conv2d(32, 64, 4, 2)
        self.conv3 = nn.Conv2d(64, 64, 3, 1)
        self.fc = nn.Linear(3136, 512)
        width = 512 + A + 1
        if use_lstm:
            self.core = nn.LSTM(width, width, 2)
        self.policy = nn.Linear(width, A)
        self.baseline = nn.Linear(width, 1)

    def forward(self, frame, reward, last_action):
        x = frame.float() / 255.0
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.relu(conv(x))
        x = F.relu(self.fc(x.flatten(1)))
        one_hot = F.one_hot(last_action, A).float()
        x = torch.cat([x, reward.clamp(-1, 1).unsqueeze(-1), one_hot], dim=-1)
        if hasattr(self, "core"):
            x = self.core(x.unsqueeze(0))[0].squeeze(0)
        return self.policy(x), self.baseline(x).squeeze(-1)


class ResNet(nn.Module):
    """PolyBeast's."""

    def __init__(self, use_lstm):
        super().__init__()
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1)
        block = lambda c: nn.Sequential(nn.ReLU(), conv(c, c), nn.ReLU(), conv(c, c))
        channels = [4, 16, 32, 32]
        self.feat_convs = nn.ModuleList(
            nn.Sequential(conv(a, b), nn.MaxPool2d(3, 2, 1))
            for a, b in zip(channels, channels[1:], strict=False)
        )
        self.resnet1 = nn.ModuleList(block(c) for c in channels[1:])
        self.resnet2 = nn.ModuleList(block(c) for c in channels[1:])
        self.fc = nn.Linear(3872, 256)
        if use_lstm:
            self.core = nn.LSTM(257, 256, num_layers=1)
        self.policy = nn.Linear(256 if use_lstm else 257, A)
        self.baseline = nn.Linear(256 if use_lstm else 257, 1)

    def forward(self, frame, reward, last_action):
        x = frame.float() / 255.0
        for conv, first, second in zip(self.feat_convs, self.resnet1, self.resnet2, strict=True):
            x = conv(x)
            x = x + first(x)
            x = x + second(x)
        x = F.relu(self.fc(F.relu(x).flatten(1)))
        x = torch.cat([x, reward.clamp(-1, 1).unsqueeze(-1)], dim=-1)
        if hasattr(self, "core"):
            x = self.core(x.unsqueeze(0))[0].squeeze(0)
        return self.policy(x), self.baseline(x).squeeze(-1)


def old_checkpoint(path, net, **flags):
    """As TorchBeast's `checkpoint()` leaves it after 7 updates."""
    flags = {"env": "PongNoFrameskip-v4", "unroll_length": 80, "batch_size": 8} | flags
    optimizer = torch.optim.RMSprop(net.parameters(), lr=flags.get("learning_rate", 4.8e-4))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    for _ in range(7):
        optimizer.step()
        scheduler.step()
    state = {
        "model_state_dict": net.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "flags": vars(argparse.Namespace(**flags)),
    }
    torch.save(state, path)


@pytest.mark.parametrize("use_lstm", [False, True], ids=["", "lstm"])
@pytest.mark.parametrize("beast, old", [(monobeast, AtariNet), (polybeast, ResNet)])
def test_a_checkpoint_becomes_a_run_that_computes_the_same(beast, old, use_lstm, tmp_path, capsys):
    torch.manual_seed(0)
    net = old(use_lstm)
    old_checkpoint(tmp_path / "model.tar", net, learning_rate=6e-4, total_steps=30_000_000)
    argv = f"{tmp_path}/model.tar --xpid old --savedir {tmp_path}"
    from_torchbeast.main(argv.split())
    name = beast.__name__
    printed = capsys.readouterr().out
    assert f"python -m {name} --mode test --xpid old" in printed
    train = next(x for x in printed.splitlines() if "--optimizer" in x).split()
    flags = beast.parse(train[3:])
    assert (flags.learning_rate, flags.total_steps, flags.batch_size) == (6e-4, 30_000_000, 8)
    assert (flags.optimizer, flags.loss_reduction, flags.use_lstm) == ("rmsprop", "sum", use_lstm)

    state = checkpoint.load_newest(str(tmp_path / "old/model.tar"))
    assert (state["updates"], state["step"]) == (7, 7 * 80 * 8)
    test = dict(mode="test", xpid="old", savedir=str(tmp_path), num_episodes=1)
    ours, env = evaluate.load(replace(flags, **test), beast.player)
    with contextlib.closing(env):
        row = {k: torch.from_numpy(v) for k, v in env.initial(0).items()}
    row["reward"], row["last_action"] = torch.tensor([0.5]), torch.tensor([3])
    with torch.no_grad():
        logits, baseline = net(row["frame"], row["reward"], row["last_action"])
    seen, _ = act_on(ours, {k: v[None] for k, v in row.items()}, ours.initial_state(1))
    torch.testing.assert_close(seen["policy_logits"][0], logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen["baseline"][0], baseline, rtol=1e-4, atol=1e-5)

    with pytest.raises(SystemExit, match="exists; please choose another"):
        from_torchbeast.main(argv.split())


@pytest.mark.parametrize(
    "state, message",
    [
        ({"weights": {}}, r"expected a checkpoint with model_state_dict, seen \['weights'\]"),
        ({"model_state_dict": {"head.weight": torch.zeros(1)}}, "seen .'head.weight'"),
        ({"model_state_dict": {"conv1.weight": torch.zeros(1), "x.weight": torch.zeros(1)},
          "flags": {}}, "x.weight: no weight of TorchBeast's networks"),
        ({"model_state_dict": {"conv1.weight": torch.zeros(1)}, "flags": {}}, "please give --env"),
        ({"model_state_dict": {"conv1.weight": torch.zeros(1)},
          "flags": {"env": "PongNoFrameskip-v4"}}, "does not fit PongNoFrameskip-v4"),
    ],
)  # fmt: skip
def test_other_checkpoints_are_refused(state, message, tmp_path):
    torch.save(state, tmp_path / "model.tar")
    with pytest.raises(SystemExit, match=message):
        from_torchbeast.main(f"{tmp_path}/model.tar --xpid old --savedir {tmp_path}".split())
    assert not (tmp_path / "old").exists()


def test_a_file_that_could_run_code_is_refused(tmp_path):
    torch.save({"model_state_dict": argparse.Namespace()}, tmp_path / "model.tar")
    with pytest.raises(SystemExit, match="expected a checkpoint of TorchBeast"):
        from_torchbeast.main(f"{tmp_path}/model.tar --xpid old --savedir {tmp_path}".split())


OLD_LOG = """\
# _tick,_time,step,mean_episode_return,total_loss
0,100.0,640,nan,3.5
1,105.0,1280,-21.0,2.5
2,110.0,1920,-20.5,2.5,"(-20.0, -21.0)"
"""


def test_old_logs_are_drawn(tmp_path):
    """A column that came later stands in fields.csv only; "nan" is no value."""
    run = tmp_path / "torchbeast-1"
    run.mkdir()
    (run / "logs.csv").write_text(OLD_LOG)
    fields = "_tick,_time,step,mean_episode_return,total_loss"
    (run / "fields.csv").write_text(f"_tick,_time\n{fields}\n{fields},episode_returns\n")
    curve = plot.read_curve(run / "logs.csv", "mean_game_return")
    assert (curve.y, curve.steps, curve.frames) == ([-21.0, -20.5], [1280, 1920], [5120, 7680])
    assert curve.hours == pytest.approx([5 / 3600, 10 / 3600])
    (line,) = plot.plot([str(run)], str(tmp_path / "plot.png"))
    assert line.name == "torchbeast-1"
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
