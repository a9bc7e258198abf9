"""Nested training state to safetensors + JSON and back, without pickle.

A tree is dictionaries, lists and tuples of tensors, arrays and plain values: what ``state_dict()`` of a module, an
optimiser, a generator or a simulator returns. Tensors go to one safetensors blob under running names, all the rest to
JSON, where a small tagged object stands for what JSON lacks (tuples, integer keys, dtypes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from robopo.errors import CheckpointError

type Tree = Any
"""Tensor | NDArray | numpy scalar | str | int | float | bool | None | dict | list | tuple of trees."""

_TAG = "__tree__"


def encode_tree(tree: Tree) -> tuple[bytes, bytes]:
    """Return ``(safetensors bytes, JSON bytes)``. ``tree`` is left as it was.

    Raises CheckpointError naming the path of a value that neither format can hold.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _encode(tree, "state", tensors)
    return save_tensors(tensors), json.dumps(skeleton, separators=(",", ":")).encode()


def decode_tree(tensor_bytes: bytes, json_bytes: bytes) -> Tree:
    """Inverse of ``encode_tree``; tensors come back on the CPU. Raises CheckpointError on damaged input."""
    try:
        return _decode(json.loads(json_bytes), load_tensors(tensor_bytes))
    except Exception as error:
        raise CheckpointError(
            f"training state can't be decoded ({error}); resume from an earlier checkpoint"
        ) from error


def _encode(value: Tree, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "dtype": str(value.dtype), "value": value.item()}
    if isinstance(value, int | float):
        return value
    if isinstance(value, Tensor):
        return {_TAG: "tensor", "name": _store(value, tensors)}
    if isinstance(value, np.ndarray):
        return _encode_array(cast("NDArray[Any]", value), path, tensors)
    if isinstance(value, tuple | list):
        items = [_encode(item, f"{path}[{i}]", tensors) for i, item in enumerate(cast("list[Any]", value))]
        return {_TAG: "tuple", "items": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return _encode_mapping(cast("Mapping[Any, Any]", value), path, tensors)
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, expected tensors, arrays, numbers, strings, lists and dictionaries; "
        "return plain values from state_dict()"
    )


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    encoded = [(key, _encode(item, f"{path}.{key}", tensors)) for key, item in value.items()]
    if all(isinstance(key, str) for key in value) and _TAG not in value:
        return dict(encoded)
    bad = next((key for key in value if not isinstance(key, str | int)), None)
    if bad is not None:
        raise CheckpointError(f"{path} has the key {bad!r}; expected strings or integers as keys")
    return {_TAG: "dict", "items": [[key, item] for key, item in encoded]}


def _encode_array(value: NDArray[Any], path: str, tensors: dict[str, Tensor]) -> Any:
    kind = value.dtype.kind
    if kind == "U":
        return {_TAG: "strings", "shape": list(value.shape), "value": value.ravel().tolist()}
    if kind not in "biuf" or value.dtype.itemsize > 8:
        raise CheckpointError(f"{path} is an array of {value.dtype}; expected booleans, integers, floats or strings")
    native = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")).reshape(value.shape)
    return {_TAG: "array", "name": _store(torch.from_numpy(native.copy()), tensors)}


def _store(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    name = f"t{len(tensors)}"
    # clone: safetensors refuses tensors that share storage, and a state tree may well name one twice
    tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return name


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Tree:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    tagged = cast("dict[str, Any]", node)
    match tagged.get(_TAG):
        case None:
            return {key: _decode(item, tensors) for key, item in tagged.items()}
        case "tensor":
            return tensors[tagged["name"]]
        case "array":
            return tensors[tagged["name"]].numpy()
        case "scalar":
            return np.dtype(tagged["dtype"]).type(tagged["value"])
        case "strings":
            return np.array(tagged["value"], dtype=np.str_).reshape(tagged["shape"])
        case "tuple":
            return tuple(_decode(item, tensors) for item in tagged["items"])
        case "dict":
            return {key: _decode(item, tensors) for key, item in tagged["items"]}
        case unknown:
            raise CheckpointError(f"unknown tag {unknown!r}; was this checkpoint written by a newer robopo?")
