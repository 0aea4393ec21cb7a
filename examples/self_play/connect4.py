# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Connect Four against oneself: `--env examples.self_play.connect4:ConnectFour-v0`, and against a
fixed opponent: `--eval_env examples.self_play.connect4:ConnectFour-Negamax2-v0`.

A position is two integers, `own` and `both`: the stones of the player to move, and all stones. Cell
(row, column) is bit 7 * column + row, and row 0 is the lowest. Bit 6 of each column is always 0, so
that no line of four goes on from the top of a column to the bottom of the next one.
"""

from typing import Any

import gymnasium
import numpy as np

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
BOTTOMS = [1 << 7 * column for column in range(COLUMNS)]
FULLS = [bottom * 0b111111 for bottom in BOTTOMS]  # all six cells of a column
ORDER = sorted(range(COLUMNS), key=lambda column: abs(column - 3))  # good moves are often central

OBSERVATIONS = gymnasium.spaces.Dict(
    board=gymnasium.spaces.Box(0, 1, (2, ROWS, COLUMNS), np.int8),
    action_mask=gymnasium.spaces.Box(0, 1, (COLUMNS,), np.int8),
)


# ============================================================================================ rules
def move(both: int, column: int) -> int:
    """The bit of the cell that a stone in `column` falls into, or 0 if the column is full."""
    return (both + BOTTOMS[column]) & FULLS[column]


def has_line(stones: int) -> bool:
    """Whether four stones are in a line: vertical, horizontal, or on a diagonal."""
    for step in (1, 7, 6, 8):  # from a cell to the next one in each of the four directions
        pairs = stones & stones >> step
        if pairs & pairs >> 2 * step:
            return True
    return False


class Board:
    """A game in progress.

    Attributes:
        own, both: the position (see this module's docstring).
        moves: how many stones were played. The first player moves where it is even.
    """

    def __init__(self) -> None:
        self.own = self.both = self.moves = 0
        self._stones = np.zeros((2, ROWS, COLUMNS), np.int8)  # of the first and the second player
        self._allowed = np.ones(COLUMNS, np.int8)

    def play(self, column: int) -> bool:
        """Makes a move. Returns whether it wins; the turn then has passed nevertheless."""
        stone = move(self.both, column)
        if not stone:
            raise ValueError(f"expected a column that is not full, seen {column}")
        row = stone.bit_length() - 1 - 7 * column
        self._stones[self.moves & 1, row, column] = 1
        self._allowed[column] = row < ROWS - 1
        own, self.own, self.both = self.own | stone, self.own ^ self.both, self.both | stone
        self.moves += 1
        return has_line(own)

    def seen(self) -> dict[str, np.ndarray]:
        """The observation of the player to move: `board`, int8 [2, 6, 7], has his own stones and
        then his opponent's; `action_mask`, int8 [7], is 0 where a column is full."""
        stones = self._stones[::-1] if self.moves & 1 else self._stones
        return {"board": stones.copy(), "action_mask": self._allowed.copy()}

    def picture(self) -> np.ndarray:
        """uint8 [192, 224, 3]: the first player's stones are red, the second's yellow."""
        first, second = self._stones[:, ::-1, :, None]
        cells = np.full((ROWS, COLUMNS, 3), (0, 0, 96)) + first * (220, 0, -96)
        cells += second * np.array((240, 220, -96))
        return np.kron(cells, np.ones((32, 32, 1), int)).astype(np.uint8)


# ========================================================================================= opponent
def value(own: int, both: int, depth: int, alpha: int, beta: int) -> int:
    """The value of a position for the player to move, if both play the next `depth` moves well.

    A win counts as many points as cells were empty before its last move, so that a sooner one is
    better. A loss counts as many negative points, and a draw or an open end 0. This is a negamax
    search with alpha-beta pruning: the result is exact between `alpha` and `beta`, and otherwise
    only says on which side of them the value is.
    """
    empty = CELLS - both.bit_count()
    if not depth or not empty:
        return 0
    stones = [stone for column in ORDER if (stone := move(both, column))]
    if any(has_line(own | stone) for stone in stones):
        return empty
    if depth == 1 or empty == 1:
        return 0
    for stone in stones:
        alpha = max(alpha, -value(own ^ both, both | stone, depth - 1, -beta, -alpha))
        if alpha >= beta:
            break
    return alpha


def best_moves(own: int, both: int, depth: int) -> list[int]:
    """The columns with the best value of a search that looks `depth` moves ahead: with depth 1 it
    sees a win, with depth 2 also what the opponent could win next. With depth 0 all are equal."""
    best, columns = -CELLS, []
    for column in filter(lambda column: move(both, column), ORDER if depth else ()):
        stone = move(both, column)
        if has_line(own | stone):
            found = CELLS - both.bit_count()
        else:  # exact unless it is worse than the best one so far
            found = -value(own ^ both, both | stone, depth - 1, -CELLS, 1 - best)
        if found > best:
            best, columns = found, []
        if found == best:
            columns.append(column)
    return columns or [column for column in range(COLUMNS) if move(both, column)]


# ===================================================================================== environments
class ConnectFour(gymnasium.Env):
    """Both players are the agent. Each step is the move of the player whose turn it is, seen from
    his side, and its reward is 1 if it wins. Then the turn passes, so the discount is -1: the next
    value is the opponent's. The return is the first player's: 1, 0 or -1.

    Args:
        opening: each game begins with 0 to `opening` moves at random of each player, at most 3, so
            that none wins and no column overflows.
    """

    observation_space, action_space = OBSERVATIONS, gymnasium.spaces.Discrete(COLUMNS)
    metadata = {
        "render_modes": ["rgb_array"],
        "own_discounts": True,
        "game_numbers": ["first_wins", "draws", "moves"],
    }

    def __init__(self, opening: int = 0, render_mode: str | None = None):
        self.opening, self.render_mode = opening, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.board = Board()
        for _ in range(2 * int(self.np_random.integers(self.opening + 1))):
            self.board.play(int(self.np_random.integers(COLUMNS)))
        return self.board.seen(), {}

    def step(self, action: Any) -> Any:
        board, is_first = self.board, self.board.moves % 2 == 0
        wins = board.play(int(action))
        is_over = wins or board.moves == CELLS
        own: dict[str, Any] = {"discount": -1.0}
        if is_over:
            first_wins = float(wins and is_first)
            numbers = {"first_wins": first_wins, "draws": float(not wins), "moves": board.moves}
            own["game_numbers"] = numbers
        return board.seen(), float(wins), is_over, False, {"torchbeast": own}

    def render(self) -> np.ndarray:
        return self.board.picture()


class Versus(gymnasium.Env):
    """The agent plays against `best_moves` of a depth, which draws lots among equally good moves.
    The reward is 1 for a win and -1 for a loss. The agent moves first in every other game; after
    `reset(seed=...)` in a game with an even seed. `as_first` and `as_second` are its returns."""

    observation_space, action_space = OBSERVATIONS, gymnasium.spaces.Discrete(COLUMNS)
    metadata = {
        "render_modes": ["rgb_array"],
        "game_numbers": ["as_first", "as_second", "draws", "moves"],
    }

    def __init__(self, depth: int, render_mode: str | None = None):
        self.depth, self.game, self.render_mode = depth, 0, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.game = self.game + 1 if seed is None else seed
        self.board = Board()
        if self.game % 2:
            self.answer()
        return self.board.seen(), {}

    def answer(self) -> bool:
        """Makes the opponent's move. Returns whether it wins."""
        return self.board.play(self.opponents_move())

    def opponents_move(self) -> int:
        columns = best_moves(self.board.own, self.board.both, self.depth)
        return columns[self.np_random.integers(len(columns))]

    def step(self, action: Any) -> Any:
        board = self.board
        reward = float(board.play(int(action)))
        if not reward and board.moves < CELLS:
            reward -= float(self.answer())
        is_over = bool(reward) or board.moves == CELLS
        own = {}
        if is_over:
            side = "as_second" if self.game % 2 else "as_first"
            own["game_numbers"] = {side: reward, "draws": float(not reward), "moves": board.moves}
        return board.seen(), reward, is_over, False, {"torchbeast": own}

    def render(self) -> np.ndarray:
        return self.board.picture()


gymnasium.register("ConnectFour-v0", ConnectFour)
gymnasium.register("ConnectFour-Opening-v0", ConnectFour, kwargs={"opening": 3})
gymnasium.register("ConnectFour-Random-v0", Versus, kwargs={"depth": 0})
for depth in (2, 4):
    gymnasium.register(f"ConnectFour-Negamax{depth}-v0", Versus, kwargs={"depth": depth})
