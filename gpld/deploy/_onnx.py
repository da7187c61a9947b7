"""A JAX function with fixed shapes as an ONNX graph, for the primitives that acting consists of."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

OPSET, IR = 18, 8
"""Of December 2022: whatever runs ONNX today knows them."""

Tensor = str | np.ndarray
"""A name in the graph, or the value of what does not depend on its inputs."""


class Graph:
    """Nodes and constants so far, and for each primitive how to add it."""

    def __init__(self):
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def inline(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Add what a jaxpr computes; its outputs."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {var: np.asarray(value) for var, value in zip(jaxpr.constvars, consts, strict=True)}

        def read(atom: Any) -> Tensor:
            return np.asarray(atom.val, aval(atom).dtype) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            outputs = self.apply(eqn, [read(atom) for atom in eqn.invars])
            known |= zip(eqn.outvars, outputs, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def apply(self, eqn: JaxprEqn, inputs: list[Tensor]) -> list[Tensor]:
        """Add one primitive, or compute it now if its inputs are constants."""
        name = eqn.primitive.name
        if inner := eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr"):
            # JAX 0.10 has jaxprs without constants, too.
            return self.inline(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if not any(isinstance(x, str) for x in inputs):
            found = eqn.primitive.bind(*inputs, **eqn.params)
            return [np.asarray(x) for x in (found if eqn.primitive.multiple_results else [found])]
        if name in SAME:
            return [self.add(SAME[name], *inputs)]
        if name not in OTHER:
            raise NotImplementedError(f"there is no translation of JAX's primitive {name!r} to ONNX")
        found = OTHER[name](self, eqn, *inputs)
        return found if isinstance(found, list) else [found]

    def add(self, kind: str, *inputs: Tensor, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of names."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        made = [f"{kind}{len(self.nodes)}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, value: np.ndarray) -> str:
        """The name of a constant."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value).reshape(value.shape)
        return name

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Another shape of the same numbers."""
        return x.reshape(shape) if isinstance(x, np.ndarray) else self.add("Reshape", x, ints(shape))

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Axes in another order."""
        if list(order) == sorted(order):
            return x
        return x.transpose(order) if isinstance(x, np.ndarray) else self.add("Transpose", x, perm=list(order))


def to_onnx(
    function: Callable[..., Any], inputs: Mapping[str, jax.ShapeDtypeStruct], outputs: Sequence[str]
) -> bytes:
    """A function of arrays, by the names of its inputs in their order, as the bytes of an ONNX file.

    `outputs` are the names of the arrays in the tuple that it returns.
    """
    traced, graph = jax.make_jaxpr(function)(*inputs.values()), Graph()
    found = graph.inline(traced.jaxpr, traced.consts, list(inputs))
    nodes = [*graph.nodes]
    for name, value in zip(outputs, found, strict=True):
        source = value if isinstance(value, str) else graph.constant(value)
        nodes.append(helper.make_node("Identity", [source], [name]))
    wanted, used = set(outputs), []
    for node in reversed(nodes):  # what no output needs is left out
        if wanted & set(node.output):
            wanted |= set(node.input)
            used.insert(0, node)
    constants = [numpy_helper.from_array(x, name) for name, x in graph.constants.items() if name in wanted]
    ends = [_declared(name, aval) for name, aval in zip(outputs, traced.out_avals, strict=True)]
    starts = [_declared(name, aval) for name, aval in inputs.items()]
    model = helper.make_model(
        helper.make_graph(used, "step", starts, ends, constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="gpld",
    )
    return model.SerializeToString()


def _declared(name: str, aval: Any) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, _type(aval.dtype), aval.shape)


def _type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def aval(atom: Any) -> Any:
    """Shape and type of a variable or literal of a jaxpr."""
    return atom.aval


def ints(values: Any) -> np.ndarray:
    """Shapes and axes as ONNX takes them."""
    return np.asarray(values, np.int64)


_CAPITALIZED = ("abs", "add", "div", "exp", "log", "max", "min", "mul", "neg", "sign", "sqrt", "sub", "tanh")
SAME = {name: name.capitalize() for name in _CAPITALIZED} | {
    "add_any": "Add",
    "copy": "Identity",
    "eq": "Equal",
    "le": "LessOrEqual",
    "logistic": "Sigmoid",
    "lt": "Less",
    "stop_gradient": "Identity",
}
"""Primitives that ONNX has by another name."""


def _shape(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    return g.reshape(x, aval(eqn.outvars[0]).shape)


def _broadcast(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    given, shape = aval(eqn.invars[0]).shape, eqn.params["shape"]
    placed = [1] * len(shape)
    for size, axis in zip(given, eqn.params["broadcast_dimensions"], strict=True):
        placed[axis] = size
    x = x if list(given) == placed else g.reshape(x, placed)
    return x if tuple(placed) == tuple(shape) else g.add("Expand", x, ints(shape))


def _slice(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    starts, ends = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or [1] * len(starts)
    return g.add("Slice", x, ints(starts), ints(ends), ints(range(len(starts))), ints(steps))


def _split(g: Graph, eqn: JaxprEqn, x: Tensor) -> list[Tensor]:
    sizes = eqn.params["sizes"]
    made = g.add("Split", x, ints(sizes), axis=eqn.params["axis"], outputs=len(sizes))
    return made if len(sizes) > 1 else [made]


def _reduce(kind: str) -> Callable[..., Tensor]:
    return lambda g, eqn, x: g.add(kind, x, ints(eqn.params["axes"]), keepdims=0)


def _argmax(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    (axis,) = eqn.params["axes"]
    return g.add("Cast", g.add("ArgMax", x, axis=axis, keepdims=0), to=_type(eqn.params["index_dtype"]))


def _log1p(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    # ln(1 + x) x / ((1 + x) - 1), where the rounding of 1 + x cancels; x itself where nothing is left of it.
    one = np.ones((), np.float32)
    more = g.add("Add", x, one)
    rest = g.add("Sub", more, one)
    lost = g.add("Equal", rest, np.zeros((), np.float32))
    ratio = g.add("Div", x, g.add("Where", lost, one, rest))
    return g.add("Where", lost, x, g.add("Mul", g.add("Log", more), ratio))


def _power(g: Graph, eqn: JaxprEqn, x: Tensor) -> Tensor:
    exponent = eqn.params["y"]
    return g.add("Mul", x, x) if exponent == 2 else g.add("Pow", x, np.asarray(exponent, np.float32))


def _dot(g: Graph, eqn: JaxprEqn, left: Tensor, right: Tensor) -> Tensor:
    """Both as stacks of matrices: axes that both keep, own axes, and those that are summed over."""
    (sum_left, sum_right), (keep_left, keep_right) = eqn.params["dimension_numbers"]
    shapes = [aval(atom).shape for atom in eqn.invars]
    own = [
        [axis for axis in range(len(shape)) if axis not in (*keep, *summed)]
        for shape, keep, summed in zip(shapes, (keep_left, keep_right), (sum_left, sum_right), strict=True)
    ]
    keep = [shapes[0][axis] for axis in keep_left]
    rows, columns = (math.prod(shape[axis] for axis in o) for shape, o in zip(shapes, own, strict=True))
    depth = math.prod(shapes[0][axis] for axis in sum_left)
    left = g.reshape(g.transpose(left, [*keep_left, *own[0], *sum_left]), [*keep, rows, depth])
    right = g.reshape(g.transpose(right, [*keep_right, *sum_right, *own[1]]), [*keep, depth, columns])
    return g.reshape(g.add("MatMul", left, right), aval(eqn.outvars[0]).shape)


def _convolve(g: Graph, eqn: JaxprEqn, x: Tensor, weight: Tensor) -> Tensor:
    numbers, given = eqn.params["dimension_numbers"], eqn.params
    if set(given["lhs_dilation"]) != {1} or given["batch_group_count"] != 1:
        raise NotImplementedError("there is no translation of dilated or grouped inputs of a convolution")
    starts, ends = zip(*given["padding"], strict=True)
    y = g.add(
        "Conv",
        g.transpose(x, numbers.lhs_spec),
        g.transpose(weight, numbers.rhs_spec),
        strides=list(given["window_strides"]),
        pads=[*starts, *ends],
        dilations=list(given["rhs_dilation"]),
        group=given["feature_group_count"],
    )
    return g.transpose(y, np.argsort(numbers.out_spec).tolist())


OTHER: dict[str, Callable[..., Tensor | list[Tensor]]] = {
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda g, eqn, low, x, high: g.add("Min", g.add("Max", x, low), high),
    "concatenate": lambda g, eqn, *parts: g.add("Concat", *parts, axis=eqn.params["dimension"]),
    "conv_general_dilated": _convolve,
    "convert_element_type": lambda g, eqn, x: g.add("Cast", x, to=_type(eqn.params["new_dtype"])),
    "cumsum": lambda g, eqn, x: g.add(
        "CumSum", x, ints(eqn.params["axis"]), reverse=int(eqn.params["reverse"])
    ),
    "dot_general": _dot,
    "expand_dims": _shape,
    "integer_pow": _power,
    "log1p": _log1p,
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_sum": _reduce("ReduceSum"),
    "reshape": _shape,
    "rsqrt": lambda g, eqn, x: g.add("Reciprocal", g.add("Sqrt", x)),
    "select_n": lambda g, eqn, which, no, yes: g.add("Where", which, yes, no),
    "slice": _slice,
    "split": _split,
    "square": lambda g, eqn, x: g.add("Mul", x, x),
    "squeeze": _shape,
    "transpose": lambda g, eqn, x: g.transpose(x, eqn.params["permutation"]),
}
"""How to add all others."""
