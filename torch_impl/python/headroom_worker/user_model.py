"""`--read-model=FILE:NAME`: reads a network off a user's file, for `headroom run --model`.

The file is executed, with the rights of whoever called. What it prints goes to standard error. The answer is
one line of JSON: {"widths", "activation", "sha256"}, or {"error": one line that names the module in the way}.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

from headroom_protocol.server import one_line

EXPECTED = "expected a torch.nn.Sequential of Linear layers with one kind of activation between them"
# What a file's code is called while it runs: not __main__, whose code would start a training.
MODULE_NAME = "headroom_user_model"
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class NotTrained(Exception):
    """Not a network that Headroom trains, or no network; the text says why, in one line."""


def read_model(file: str, name: str) -> dict:
    """The answer for `NAME` of `file`: a module, or a callable without arguments that returns one."""
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        raise NotTrained(f"the file cannot be read: {error.strerror}") from None
    try:
        import torch
    except ImportError as error:
        raise NotTrained(f"PyTorch is needed to read it, and cannot be imported: {error}") from None

    namespace = execute(source, file)
    if name not in namespace:
        known = [word for word, value in namespace.items() if callable(value) and not word.startswith("_")]
        raise NotTrained(
            f"the file has no {name!a}; it has {', '.join(known[:8]) or 'nothing that could be called'}"
        )
    network = namespace[name]
    if not isinstance(network, torch.nn.Module):
        if not callable(network):
            raise NotTrained(f"{name} is of type {type(network).__name__}; {EXPECTED}, or what returns one")
        network = called(network, file)
    if not isinstance(network, torch.nn.Module):
        raise NotTrained(f"{name} returned a value of type {type(network).__name__}; {EXPECTED}")
    widths, activation = read_network(network)
    return {"widths": widths, "activation": activation, "sha256": hashlib.sha256(source).hexdigest()}


def execute(source: bytes, file: str) -> dict:
    """What the file defines. Its folder is on sys.path, as that of a program is."""
    path = Path(file).absolute()
    sys.path.insert(0, str(path.parent))
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = str(path)
    sys.modules[MODULE_NAME] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102
    except BaseException as error:  # SystemExit too
        raise NotTrained(told(error, path)) from None
    return vars(module)


def called(make, file: str):
    try:
        return make()
    except BaseException as error:
        raise NotTrained(told(error, Path(file).absolute())) from None


def told(error: BaseException, path: Path) -> str:
    """What went wrong in the user's code, and in which line of the file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: {error.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    place = f"line {lines[-1]}: " if lines else ""
    text = f": {error}" if str(error) else ""
    return f"{place}{type(error).__name__}{text}"


def read_network(network) -> tuple[list[int], str]:
    """Widths and activation of Linear layers with an activation between each two; Flatten may precede."""
    from torch import nn

    from headroom_worker.rules import ACTIVATIONS

    names = {kind: name for name, kind in ACTIVATIONS.items()}
    refuse_other_forward(network, "")
    if not is_sequential(network):
        raise NotTrained(f"it is {described(network)}; {EXPECTED}")
    modules = list(leaves(network, "", {id(network)}))
    if not any(type(module) is nn.Linear for _, module in modules):
        raise NotTrained(f"it has no Linear layer; {EXPECTED}")
    widths, activation, parameters = [], None, set()
    pending = ""  # the activation since the last Linear: what the next one needs, and the last must not have
    for index, (path, module) in enumerate(modules):
        where = f"module {path!a} is {described(module)}"
        if type(module) is nn.Flatten:
            if widths:
                raise NotTrained(f"{where}, behind a Linear; only in front of all of them it changes nothing")
            if (module.start_dim, module.end_dim) != (1, -1):
                raise NotTrained(f"{where}; expected its defaults, which keep the batch")
        elif type(module) is nn.Linear:
            refuse_other_linear(module, where, parameters)
            if widths and not pending:
                raise NotTrained(f"{where}, with no activation between it and the Linear before it")
            if widths and module.in_features != widths[-1]:
                raise NotTrained(f"{where}, but the Linear before it gives {widths[-1]} outputs")
            widths = widths or [module.in_features]
            widths.append(module.out_features)
            pending = ""
        elif type(module) in names:
            if not widths or pending:
                raise NotTrained(f"{where}; expected a Linear before it")
            refuse_other_arguments(module, where)
            kind = names[type(module)]
            if activation not in (None, kind):
                raise NotTrained(f"{where}; before it {activation}, and all hidden layers must have the same")
            activation, pending = kind, path
        else:
            raise NotTrained(f"{where}; {why_not(module, index == len(modules) - 1)}")
    if pending:
        raise NotTrained(
            f"module {pending!a} is an activation behind the last Linear; leave it out: outputs have none"
        )
    return widths, activation or "relu"


def is_sequential(module) -> bool:
    from torch import nn

    kind = type(module)
    own = kind.forward is not nn.Sequential.forward or kind.__call__ is not nn.Module.__call__
    return isinstance(module, nn.Sequential) and not own


def leaves(module, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    """The modules of nested Sequentials in order, each with its path, such as '0.2'."""
    for name, child in module._modules.items():
        child_path = f"{path}.{name}" if path else name
        if child is None:
            raise NotTrained(f"module {child_path!a} is None; {EXPECTED}")
        if id(child) in seen and any(True for _ in child.parameters()):
            raise NotTrained(
                f"module {child_path!a} is {described(child)} that is there twice; layers cannot be shared"
            )
        seen.add(id(child))
        refuse_other_forward(child, child_path)
        if is_sequential(child):
            yield from leaves(child, child_path, seen)
        else:
            yield child_path, child


def refuse_other_forward(module, path: str) -> None:
    """A hook or a replaced method computes what nothing here can see."""
    who = f"module {path!a}" if path else "it"
    if "forward" in vars(module) or any(getattr(module, hooks, None) for hooks in HOOKS):
        raise NotTrained(f"{who} is {described(module)} with a hook or another forward; leave that out")


def refuse_other_linear(module, where: str, parameters: set[int]) -> None:
    import torch

    if module.bias is None:
        raise NotTrained(f"{where} with bias=False; every layer must have a bias")
    for parameter in (module.weight, module.bias):
        if id(parameter) in parameters:
            raise NotTrained(f"{where} with the parameters of another layer; layers cannot be shared")
        parameters.add(id(parameter))
        if parameter.dtype != torch.float32:
            raise NotTrained(
                f"{where} of {parameter.dtype}; expected torch.float32: --precision says how products compute"
            )
        if not parameter.requires_grad:
            raise NotTrained(f"{where} that is frozen; every parameter must be trained")


def refuse_other_arguments(module, where: str) -> None:
    for argument, default in (("approximate", "none"), ("alpha", 1)):
        value = getattr(module, argument, default)
        if value != default:
            raise NotTrained(f"{where} with {argument}={value!r}; expected the default, {default!r}")


def why_not(module, is_last: bool) -> str:
    from torch import nn

    if isinstance(module, (nn.Softmax, nn.LogSoftmax)) and is_last:
        return "leave it out: --loss cross-entropy has it"
    if isinstance(module, (nn.Sigmoid, nn.LogSigmoid)) and is_last:
        return "leave it out: --loss bce has it"
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "leave it out: dropout is not trained here"
    if type(module).__module__.startswith("torch.nn"):
        return "known are Linear, ReLU, Tanh, SiLU, GELU, ELU, and a Flatten in front"
    return f"a forward of its own cannot be read; {EXPECTED}"


def described(module) -> str:
    """The class, and for modules of torch.nn what they print of themselves: 'Linear(in_features=3, ...)'."""
    kind = type(module).__name__
    if type(module).__module__.startswith("torch.nn.modules") and not list(module.children()):
        text = f"{kind}({module.extra_repr()})"
        return f"{'an' if kind[0] in 'AEIOU' else 'a'} {text}"
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def answer_about(model: str, answers: int) -> None:
    """Writes the answer about FILE:NAME to a descriptor and ends the process, with the file's threads."""
    file, _, name = model.rpartition(":")
    # A process that the file forks must not hold the reader of the answer up.
    os.register_at_fork(after_in_child=lambda: os.close(answers))
    try:
        answer = read_model(file, name)
    except NotTrained as error:
        answer = {"error": one_line(str(error))}
    except BaseException as error:  # of an extra_repr(), say
        answer = {"error": one_line(f"{type(error).__name__}: {error}")}
    line = json.dumps(answer).encode() + b"\n"
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(answers, "wb") as out:
        out.write(line)
    os._exit(0)
