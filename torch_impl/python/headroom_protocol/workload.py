"""What is trained, as bench/core/workload.h has it: the names of activations and losses, and optimizers."""

from dataclasses import dataclass

ACTIVATIONS = ("relu", "tanh", "silu", "gelu", "elu")
LOSSES = ("cross-entropy", "mse", "bce")
OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Optimizer:
    """`kind` is one of OPTIMIZERS; what another kind has is left as it is here."""

    kind: str = "sgd"
    learning_rate: float = 0.003
    momentum: float = 0.0  # sgd
    beta1: float = 0.9  # adam, adamw; so are the next two
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0  # adamw

    @property
    def slots(self) -> tuple[str, ...]:
        """What torch.optim calls the values that the optimizer keeps beside each parameter."""
        if self.kind != "sgd":
            return "exp_avg", "exp_avg_sq"
        return ("momentum_buffer",) if self.momentum else ()


def beyond_plain_training(activation: str, loss: str, optimizer: Optimizer) -> str:
    """Why a backend that trains only ReLU, cross-entropy and plain sgd refuses; empty if it need not."""
    if activation != "relu":
        return f"activation {activation}; it trains relu"
    if loss != "cross-entropy":
        return f"loss {loss}; it trains cross-entropy"
    if optimizer.kind != "sgd":
        return f"optimizer {optimizer.kind}; it trains sgd"
    return "momentum; it trains plain sgd" if optimizer.momentum else ""
