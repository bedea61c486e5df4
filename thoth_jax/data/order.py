"""Which item comes when: a pure function of (seed, global position), so that a resume needs no iterator state."""

import numpy as np


class EpochOrder:
    """A fresh permutation of `size` items in each epoch.

    Position p of the run is item `permutation(seed, p // size)[p % size]`: the order depends neither on the batch size
    nor on the number of devices or hosts.
    """

    def __init__(self, size: int, seed: int):
        if size < 1:
            raise ValueError("EpochOrder needs at least one item")
        self.size = size
        self.seed = seed
        self._epoch = -1
        self._permutation = np.arange(0)

    def take(self, position: int, count: int) -> np.ndarray:
        """Item indices [count] at the global positions position .. position + count - 1."""
        indices = np.empty(count, np.int64)
        for offset in range(count):
            epoch, place = divmod(position + offset, self.size)
            if epoch != self._epoch:
                self._permutation = np.random.default_rng((self.seed, epoch)).permutation(self.size)
                self._epoch = epoch
            indices[offset] = self._permutation[place]
        return indices
