# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes rlax.json, what DeepMind's rlax makes of R2D2's equations, for tests/recurrent_q_test.py.

    python tests/data/make_rlax.py    # by hand, where rlax and the jax that it needs are installed

It computes in float64, because rlax's inverse of h is wrong by 6e-5 near 0 in float32. All inputs
are exact in float32.
"""

import json
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import rlax

GAMMA, T, B, A = 0.997, 8, 3, 3


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    generator = np.random.default_rng(0)
    numbers = lambda *shape: generator.integers(-640, 641, shape) / 64
    rows = dict(
        reward=numbers(T + 1, B),
        action=generator.integers(A, size=(T + 1, B)),
        terminated=np.zeros((T + 1, B), bool),
        online_q=numbers(T + 1, B, A),
        target_q=numbers(T + 1, B, A),
    )
    rows["terminated"][[3, 4, T], [0, 1, 1]] = True  # in no row of the last sequence

    def errors(n: int) -> np.ndarray:
        """The TD errors [T, B]. An episode ends where the discount is 0."""
        of_sequence = lambda q, a, target, best, r, discount: rlax.transformed_n_step_q_learning(
            q, a, target, best, r, discount, n, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR
        )
        return jax.vmap(of_sequence, in_axes=1, out_axes=1)(
            rows["online_q"][:-1], rows["action"][:-1],
            rows["target_q"][1:], rows["online_q"][1:].argmax(axis=-1),
            rows["reward"][1:], GAMMA * ~rows["terminated"][1:],
        )  # fmt: skip

    x = np.array([-1e6, -300, -1, -(2**-10), 0, 2**-20, 0.5, 2, 1e4])
    y = np.array([-50, -1, -(2**-10), 0, 2**-20, 0.25, 7, 200])
    found = dict(
        versions={name: version(name) for name in ("rlax", "jax")},
        gamma=GAMMA,
        h=dict(x=x, y=rlax.signed_hyperbolic(x)),
        inverse=dict(y=y, x=rlax.signed_parabolic(y)),
        rows=rows,
        errors={n: errors(n) for n in (1, 3, 5, 2 * T)},
    )
    text = json.dumps(found, default=lambda array: np.asarray(array).tolist())
    Path(__file__).with_name("rlax.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
