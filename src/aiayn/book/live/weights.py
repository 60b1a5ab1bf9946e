"""The copy model's weights for the page: half precision, as text in a script.

A page that was opened as a file may not fetch, but it may load a script. Five
characters hold four bytes, so that the script stays below 600 kB.
"""

import base64
import hashlib
import json

import torch

from aiayn.copy_task import load_copy_model
from aiayn.tokens import BOS, EOS
from aiayn.transformer import Transformer


def rounded_model() -> Transformer:
    """The shipped model with its weights rounded to half precision, in float64."""
    return load_copy_model().half().double()


def packed(tensors: list[torch.Tensor]) -> str:
    """All numbers in half precision, low byte first; four bytes in five characters.

    A comma stands for ``<``, which could end a script.
    """
    numbers = torch.cat([tensor.flatten() for tensor in tensors])
    data = numbers.half().numpy().astype("<f2").tobytes()
    return base64.b85encode(data).decode("ascii").replace("<", ",")


def weights_script() -> str:
    """The script that brings the model: its configuration, shapes and weights."""
    model = load_copy_model()
    state = model.state_dict()
    config = model.config
    data = {
        "config": {
            name: getattr(config, name) for name in ("d_model", "n_heads", "n_layers")
        },
        "bos": BOS,
        "eos": EOS,
        "shapes": {name: list(tensor.shape) for name, tensor in state.items()},
        "weights": packed(list(state.values())),
    }
    return f"globalThis.aiaynCopyModel={json.dumps(data, separators=(',', ':'))};\n"


def weights_file() -> str:
    """The script's name in the book: another for other weights."""
    digest = hashlib.sha256(weights_script().encode()).hexdigest()
    return f"copy_model.{digest[:10]}.js"
