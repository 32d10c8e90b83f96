"""Solve many sudokus at once, with a solver in plain Python and NumPy that knows nothing of JAX.

`autograph` turns its loops, jumps and in-place updates into one compiled program, and `vmap` runs
that for all puzzles side by side. Called without JAX around it, the solver is what it says.
"""

import jax
import numpy as np

import malleable as mal

PUZZLES = [
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79",
    "..9748...7.........2.1.9.....7...24..64.1.59..98...3.....8.3.2.........6...2759..",
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..77",
]


@mal.autograph
def solve(board):
    """(the full board, whether there is one); board: (9, 9) ints, 0 where nothing is given."""
    board = board.copy()
    given = board > 0
    at, forward = 0, True
    while 0 <= at < 81:
        row, column = at // 9, at % 9
        if not given[row, column]:
            digit = board[row, column] + 1
            board[row, column] = 0
            while digit <= 9 and not fits(board, row, column, digit):
                digit += 1
            forward = digit <= 9
            if forward:
                board[row, column] = digit
        at += 1 if forward else -1
    return board, at == 81


def fits(board, row, column, digit):
    if np.any(board[row] == digit) or np.any(board[:, column] == digit):
        return False
    top, left = row - row % 3, column - column % 3
    for i in range(3):
        for j in range(3):
            if board[top + i, left + j] == digit:
                return False
    return True


def main():
    boards = np.array([[int(c) for c in p.replace(".", "0")] for p in PUZZLES])
    full, found = jax.jit(jax.vmap(solve))(boards.reshape(-1, 9, 9).astype(np.int32))
    for board, there in zip(np.asarray(full), found):
        print("\n".join("".join(map(str, row)) for row in board) if there else "no solution", "\n")


if __name__ == "__main__":
    main()
