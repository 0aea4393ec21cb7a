# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import monobeast
from examples.self_play import connect4
from examples.self_play.connect4 import CELLS, COLUMNS, ROWS, Board, ConnectFour, Versus
from examples.self_play.net import Net
from libtorchbeast.environment import Environment
from tests.support.forks import ENVS, SMALL, command, run_python
from tests.support.losses import transitions
from tests.support.processes import ROOT, Program

torch.set_num_threads(1)
HERE = Path(__file__).parent
README = (HERE / "README.md").read_text()
GAME = "examples.self_play.connect4:ConnectFour"
# The columns of whole games. The first player wins those with an odd number of moves.
WON = {
    "vertical": "0101010",
    "horizontal": "0011223",
    "rising": "01122323363",
    "falling": "65544343303",
    "by the second": "60615253",
}
DRAWN = "555054466351352123041430222100021613443666"


# ===================================================== the rules once more, in arrays of cells
LINES = [
    [(r + k * dr, c + k * dc) for k in range(4)]
    for r in range(ROWS) for c in range(COLUMNS) for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1))
    if r + 3 * dr < ROWS and 0 <= c + 3 * dc < COLUMNS
]  # fmt: skip


def bits(cells):
    return sum(1 << 7 * int(c) + int(r) for r, c in cells)


def is_won(stones):
    """Whether a player with these `stones`, bool [6, 7], has a line of four."""
    return any(all(stones[cell] for cell in line) for line in LINES)


def after(cells, column):
    """The cells after a move, as the opponent sees them: 1 is his own stone, -1 the other's."""
    changed = -cells
    changed[np.flatnonzero(cells[:, column] == 0)[0], column] = -1
    return changed


def searched(cells, depth):
    """What `connect4.value` computes, from all games of `depth` moves."""
    if is_won(cells == -1):
        return -1 - int((cells == 0).sum())
    columns = np.flatnonzero(cells[-1] == 0) if depth else ()
    return max((-searched(after(cells, c), depth - 1) for c in columns), default=0)


def best_columns(cells, depth):
    values = {int(c): -searched(after(cells, c), depth - 1) for c in np.flatnonzero(cells[-1] == 0)}
    return sorted(c for c, value in values.items() if value == max(values.values()))


# ========================================================================================== boards
def played(moves):
    """The board after moves of which none wins."""
    board = Board()
    assert not any([board.play(int(column)) for column in moves])
    return board


def random_board(generator, moves):
    """The board after so many moves at random, of which none wins."""
    while True:
        board = Board()
        for _ in range(moves):
            allowed = np.flatnonzero(board.seen()["action_mask"])
            if board.play(int(generator.choice(allowed))):
                break
        else:
            return board


def cells_of(board):
    own, others = board.seen()["board"].astype(int)
    return own - others


def best(board, depth):
    return sorted(connect4.best_moves(board.own, board.both, depth))


# =========================================================================================== rules
def test_lines_are_those_of_the_rules():
    assert len(LINES) == 69 and all(connect4.has_line(bits(line)) for line in LINES)
    generator, seen = np.random.default_rng(0), []
    for _ in range(1000):
        stones = generator.random((ROWS, COLUMNS)) < 0.4
        seen.append(connect4.has_line(bits(np.argwhere(stones))))
        assert seen[-1] == is_won(stones)
    assert 200 < sum(seen) < 800


def test_a_full_column_is_masked_and_refused():
    board = played("33333")
    before = board.seen()["action_mask"]
    board.play(3)
    assert before.tolist() == [1, 1, 1, 1, 1, 1, 1]
    assert board.seen()["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="expected a column that is not full, seen 3"):
        board.play(3)


def test_each_player_sees_his_own_stones_first():
    env = ConnectFour()
    empty, _ = env.reset(seed=0)
    first, *_ = env.step(3)
    second, *_ = env.step(3)
    assert all(seen in env.observation_space for seen in (empty, first, second))
    stones = [np.argwhere(seen["board"]).tolist() for seen in (empty, first, second)]
    assert stones == [[], [[1, 0, 3]], [[0, 0, 3], [1, 1, 3]]]  # of whom, row, column


def test_a_picture_has_each_stone_where_it_lies():
    board = connect4.Board()
    for column in (3, 3, 0):
        board.play(column)
    cells = board.picture()[16::32, 16::32]
    red, yellow = (220, 0, 0), (240, 220, 0)
    stones = {(5, 3): red, (4, 3): yellow, (5, 0): red}
    for place in np.ndindex(6, 7):
        assert tuple(cells[place].tolist()) == stones.get(place, (0, 0, 96))


def test_an_opening_is_up_to_three_moves_of_each():
    env = gymnasium.make("ConnectFour-Opening-v0")
    games = [env.reset(seed=seed)[0]["board"].sum((1, 2)).tolist() for seed in range(100)]
    assert {tuple(count) for count in games} == {(n, n) for n in range(4)}
    assert not any(ConnectFour().reset(seed=seed)[0]["board"].any() for seed in range(20))


# ===================================================================== turns and their values
def rows_of(moves):
    """The rows [T+1, 1, ...] of a game, as the adapter makes them."""
    env = Environment(ConnectFour, 1)
    env.initial(seed=0)
    found = [{k: torch.tensor(x) for k, x in env.initial(seed=0).items()}]
    for column in moves:
        found.append({k: torch.tensor(x) for k, x in env.step(np.array([int(column)])).items()})
    return {k: torch.stack([row[k] for row in found]) for k in found[0]}


@pytest.mark.parametrize("moves", [*WON.values(), DRAWN], ids=[*WON, "drawn"])
def test_rewards_discounts_and_values_are_the_moving_players(moves):
    """With lambda 1 and values of 0 the targets are 1 at each move of the winner, -1 at each of the
    loser's. With true values that is so for each lambda, and no move has an advantage."""
    row, T, won = rows_of(moves), len(moves), float(moves != DRAWN)
    assert row["reward"].flatten().tolist() == [0] * T + [won]
    assert row["discount"].flatten().tolist() == [1] + [-1] * T
    assert row["terminated"].flatten().tolist() == [False] * T + [True]
    assert not row["truncated"].any()
    first = won * (1 if T % 2 else -1)
    assert row["episode_return"][-1] == first  # the first player's
    numbers = [row[f"game/{name}"][-1].item() for name in ("first_wins", "draws", "moves")]
    assert numbers == [first == 1, won == 0, T]
    expected = won * torch.tensor([[1.0 if (T - 1 - t) % 2 == 0 else -1.0] for t in range(T)])
    true = torch.cat([expected, torch.tensor([[5.0]])])  # the last is after the end
    actions = torch.tensor([[int(column)] for column in moves + "0"])
    for values, vtrace_lambda in ((torch.zeros(T + 1, 1), 1.0), (true, 1.0), (true, 0.5)):
        outputs = dict(policy_logits=torch.zeros(T + 1, 1, COLUMNS), baseline=values)
        options = dict(discounting=1.0, vtrace_lambda=vtrace_lambda)
        batch = transitions(row | outputs | dict(action=actions), outputs, **options)
        found = monobeast.targets(batch)
        assert torch.equal(found["v"], expected)
        assert torch.equal(found["advantage"], expected - values[:-1])


# ======================================================================================== opponents
def test_negamax_sees_as_far_as_its_depth():
    """Two in a row with both ends free lose, unless one is blocked."""
    assert best(played("01010"), 1) == [0, 1, 2, 3, 4, 5, 6] and best(played("01010"), 2) == [0]
    assert best(played("223"), 2) == [0, 1, 2, 3, 4, 5, 6] and best(played("223"), 4) == [1, 4]
    assert best(played("010101" + "222222"), 0) == [0, 1, 3, 4, 5, 6]  # depth 0 is random


@pytest.mark.parametrize("moves, depth", [(6, 3), (14, 4), (20, 3), (34, 8), (36, 6), (38, 42)])
def test_negamax_agrees_with_a_full_search(moves, depth):
    """Values, and the set of best moves. With 34 moves or more the search reaches the ends of all
    games, or nearly."""
    generator, seen = np.random.default_rng(moves), set()
    for _ in range(12):
        board = random_board(generator, moves)
        cells = cells_of(board)
        value = connect4.value(board.own, board.both, depth, -CELLS, CELLS)
        assert value == searched(cells, depth)
        assert best(board, depth) == best_columns(cells, depth)
        for low in (-3, 0, 2):  # a window says on which side of it the value is
            found = connect4.value(board.own, board.both, depth, low, low + 1)
            assert (found > low) == (value > low)
        seen.add(value)
    assert len(seen) > 1


def test_in_tests_a_mirrored_board_has_the_mirrored_policy():
    env = Environment(ConnectFour, 1)
    torch.manual_seed(0)
    net = Net(env.spec, monobeast.parse([]))
    board = torch.randint(2, (3, 2, 2, ROWS, COLUMNS), dtype=torch.int8)  # [T, B, ...]
    both = [
        net.train(is_training)({"board": x, "done": torch.zeros(3, 2, dtype=torch.bool)})[0]
        for is_training in (False, True)
        for x in (board, board.flip(-1))
    ]
    tested, mirrored, trained, other = both
    torch.testing.assert_close(tested["policy_logits"], mirrored["policy_logits"].flip(-1))
    torch.testing.assert_close(tested["baseline"], mirrored["baseline"])
    mean = (trained["policy_logits"] + other["policy_logits"].flip(-1)) / 2
    torch.testing.assert_close(tested["policy_logits"], mean)
    assert not torch.allclose(trained["baseline"], other["baseline"])


def test_the_agent_takes_both_sides_in_turn():
    env = Versus(2)
    count = lambda seen: int(seen[0]["board"].sum())
    assert [count(env.reset(seed=4))] + [count(env.reset()) for _ in range(3)] == [0, 1, 0, 1]
    assert [count(env.reset(seed=7))] + [count(env.reset()) for _ in range(3)] == [1, 0, 1, 0]


def play(env, seed, choose):
    """Plays a game. Returns its last reward and numbers, and its moves as seen by the agent."""
    seen, _ = env.reset(seed=seed)
    boards, over = [seen["board"].tobytes()], False
    while not over:
        seen, reward, over, _, info = env.step(choose(seen))
        boards.append(seen["board"].tobytes())
    return reward, info["torchbeast"]["game_numbers"], boards


def test_the_return_is_the_agents_and_games_depend_on_the_seed():
    """Who always plays the lowest free column loses to depth 2 from both sides, and who plays as
    depth 4 wins more often than not against a random opponent."""
    lowest = lambda seen: int(np.flatnonzero(seen["action_mask"])[0])
    results = [play(Versus(2), seed, lowest) for seed in range(20)]
    assert all(reward == -1 for reward, *_ in results)
    sides = [{"as_second": -1} if seed % 2 else {"as_first": -1} for seed in range(20)]
    assert [{k: x for k, x in n.items() if k[:2] == "as"} for _, n, _ in results] == sides
    env = Versus(0)
    strong = lambda seen: connect4.best_moves(env.board.own, env.board.both, 4)[0]
    results = [play(env, seed, strong) for seed in range(20)]
    assert sum(reward for reward, *_ in results) > 15
    assert {name for _, n, _ in results for name in n} == {*Versus.metadata["game_numbers"]}
    env = gymnasium.make("ConnectFour-Negamax2-v0")
    games = [play(env, seed, lowest)[2] for seed in (0, 0, 2, 4)]
    assert games[0] == games[1] and len({tuple(game) for game in games}) > 1


# ======================================================================================== training
@pytest.mark.parametrize("beast", ["monobeast", "polybeast"])
def test_the_commands_train_and_play(tmp_path, beast):
    _, _, *train = command(HERE, beast)
    small = f"{SMALL} {ENVS[beast]} --unroll_length 20 --eval_every 200 --num_episodes 4"
    more = f"{small} --total_steps 1_000_000 --log_every 0.2".split()
    with Program(tmp_path, *train, *more, module=beast) as program:
        strength = f"mean_eval_return/{GAME}-Negamax2-v0"
        evaluated = lambda: [row for row in program.rows() if strength in row]
        program.wait_for(lambda: evaluated() and "game_moves" in program.rows()[-1])
        program.process.terminate()
        assert program.wait_for_end() == 0
    row = evaluated()[0]
    sides = [row[f"eval_game_{side}/{GAME}-Negamax2-v0"] for side in ("as_first", "as_second")]
    assert row[strength] == np.mean(sides) and row["updates"] >= 3
    assert 7 <= program.rows()[-1]["game_moves"] <= CELLS
    if beast == "monobeast":
        (test,) = re.findall(r"^\.venv/bin/python (.* --mode test .*)$", README, re.MULTILINE)
        words = f"{test} --xpid run --savedir {tmp_path} --num_episodes 4".split()
        assert "Mean game_as_second" in run_python(words, ROOT)


def test_tag_trains_two_groups_and_plays(tmp_path):
    pytest.importorskip("mpe2", reason="the package mpe2 is not installed (make test-examples)")
    (train,) = re.findall(r"^\.venv/bin/python (.* --xpid tag .*)$", README, re.MULTILINE)
    small = "--xpid run --total_steps 2000 --batch_size 16 --unroll_length 8 --num_episodes 2"
    for more in (small, f"{small} --mode test"):
        printed = run_python(f"{train} --savedir {tmp_path} {more}".split(), ROOT)
    assert "(3 adversary: " in (tmp_path / "run/out.log").read_text()
    assert "Mean game_return_agent_0 " in printed and " in 2 games" in printed
