"""A row whose second rank has other bits than the first, for test_several_devices.py."""

import numpy as np
import torch.distributed
from headroom_protocol.server import Timing


class FaultyTrainer:
    note, setup_cache = "", None

    def __init__(self, request):
        self._rank = torch.distributed.get_rank()
        self._values = np.array(request.parameters)
        self._values.view(np.uint32)[3] ^= self._rank

    def train(self, first_step: int, count: int) -> Timing:
        return Timing(device_seconds=1e-3 * (1 + self._rank), wall_seconds=1e-3, cpu_seconds=1e-3)

    def state(self, into=None):
        if into is None:
            return self._values
        into[:] = self._values
        return into


def make_trainer(request, device) -> FaultyTrainer:
    return FaultyTrainer(request)
