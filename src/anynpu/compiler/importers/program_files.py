"""Files of PyTorch, Keras and TensorFlow, inspected before their libraries read them: such files can contain programs."""

from __future__ import annotations

import ast
import importlib
import io
import json
import math
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import CompileError

# Operators of PyTorch that a network may use, by namespace. A file that uses any other is rejected before anything of it runs.
#
# The lists hold operators on tensors, numbers and shapes that use no files, processes or threads. A name stands for all its
# overloads, and for the operator that writes to its argument (``relu_`` for ``relu``).


_ATEN = """
__and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_scalar _assert_tensor_metadata _cast_Float
_cast_Half _cast_Int _cast_Long _cdist_forward _conj _convolution _convolution_mode _embedding_bag _embedding_bag_forward_only _fft_c2c
_fft_c2r _fft_r2c _fused_rms_norm _log_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _pack_padded_sequence _pad_packed_sequence _pdist_forward _prelu_kernel _reshape_alias
_reshape_from_tensor _safe_softmax _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _shape_as_tensor _softmax _to_copy _unique _unique2
_unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface abs absolute acos acosh adaptive_avg_pool1d
adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv
addr affine_grid_generator alias alias_copy all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh
arctan arctan2 arctanh argmax argmin argsort argwhere as_strided asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d
avg_pool2d avg_pool3d baddbmm batch_norm bernoulli bilinear bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize cat cdist ceil celu chain_matmul
channel_shuffle chunk clamp clamp_max clamp_min clip clone col2im column_stack combinations complex concat concatenate conj conj_physical
constant_pad_nd contiguous conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution copy copysign cos
cosh cosine_similarity count_nonzero cross cummax cummin cumprod cumsum deg2rad dequantize det detach detach_copy diag diag_embed diagflat
diagonal diagonal_copy diff digamma dim div divide dot dropout dstack einsum elu embedding embedding_bag empty empty_like empty_permuted
empty_strided eq equal erf erfc erfinv exp exp2 expand expand_as expand_copy expm1 eye fake_quantize_per_channel_affine
fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask feature_alpha_dropout
feature_dropout fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_irfft fft_irfft2 fft_irfftn
fft_rfft fft_rfft2 fft_rfftn fill fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac frobenius_norm full
full_like gather gcd ge gelu ger glu greater greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt
hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh heaviside hstack hypot i0 im2col index index_add index_copy
index_fill index_put index_reduce index_select inner instance_norm inverse is_complex is_conj is_contiguous is_floating_point is_neg
is_nonzero is_same_size is_signed isclose isfinite isin isinf isnan isneginf isposinf isreal item kaiser_window kl_div kron l1_loss
layer_norm lcm ldexp le leaky_relu lerp less less_equal lgamma lift lift_fresh lift_fresh_copy linalg_cross linalg_det linalg_diagonal
linalg_inv linalg_matmul linalg_matrix_norm linalg_multi_dot linalg_norm linalg_slogdet linalg_solve linalg_vecdot linalg_vector_norm
linear linspace log log10 log1p log2 log_sigmoid log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not
logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt mH mT masked_fill masked_scatter masked_select matmul matrix_H
matrix_exp matrix_power max max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
max_unpool2d max_unpool3d maximum mean median meshgrid min minimum mish mm mode mse_loss moveaxis movedim msort mul multinomial multiply
mv nan_to_num nanmean nansum narrow narrow_copy native_batch_norm native_channel_shuffle native_dropout native_group_norm
native_layer_norm ne neg negative new_empty new_empty_strided new_full new_ones new_zeros nonzero nonzero_numpy nonzero_static norm normal
normal_functional not_equal numel numpy_T one_hot ones ones_like outer pad pad_sequence pairwise_distance permute permute_copy
pixel_shuffle pixel_unshuffle poisson polar positive pow prelu prod quantize_per_channel quantize_per_tensor rad2deg rand rand_like
randint randint_like randn randn_like randperm range ravel real imag reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu
relu6 remainder renorm repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resolve_conj
resolve_neg rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu rrelu_with_noise rsqrt rsub
scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted select select_copy select_scatter selu sgn
sigmoid sign signbit silu sin sinc sinh size slice slice_copy slice_scatter softmax softplus softshrink sort special_digamma special_entr
special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1 special_i0 special_log1p special_log_softmax
special_logit special_logsumexp special_round special_sinc special_softmax special_xlogy split split_copy split_with_sizes
split_with_sizes_copy sqrt square squeeze squeeze_copy stack std std_mean stft istft storage_offset stride sub subtract sum sum_to_size
swapaxes swapdims sym_constrain_range sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride t
t_copy take take_along_dim tan tanh tanhshrink tensor tensor_split tensordot threshold tile to topk trace transpose transpose_copy tril
tril_indices triu triu_indices true_divide trunc type_as unbind unbind_copy unflatten unfold unfold_copy uniform unique_consecutive
unique_dim unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_bicubic2d upsample_bilinear2d
upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var var_mean vdot view view_as
view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy vstack where xlogy zero zeros zeros_like
"""
_SCALARS = """
Bool Complex Delete Float FloatImplicit Int IntImplicit ScalarImplicit Size __contains__ __derive_index __getitem__ __interpolate __is__
__isnot__ __not__ __range_length __round_to_zero_floordiv __upsample __upsample_bilinear __upsample_nearest _infer_size _set_item
_size_if_not_equal _unwrap_optional append as_tensor broadcast_shapes clear count degrees dict divmod endswith extend fabs find floordiv
format get insert items join keys len list lower mathremainder pop promote_types radians remove replace result_type reverse setdefault
sorted startswith str strip update upper values device is_scripting is_grad_enabled warn element_size
"""
_PRIM = """
Constant ConstantChunk DictConstruct EnumName EnumValue GetAttr If ListConstruct ListUnpack Loop NumToTensor Param RaiseException Return
SetAttr TupleConstruct TupleIndex TupleSlice TupleUnpack Uninitialized abs annotate device dtype grad id is_cpu is_cuda is_meta is_mkldnn
is_mps is_nested is_quantized is_sparse is_vulkan is_xpu is_xla is_ipu is_maia isinstance itemsize layout max min name ndim data
requires_grad shape tolist type unchecked_cast unchecked_unwrap_optional CreateObject
"""
_PRIMS = """
abs acos acosh add amax amin as_strided asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_in_dim cat
ceil clone collapse collapse_view convert_element_type cos cosh div empty empty_strided eq erf erfc exp exp2 expm1 fill floor fmax fmin
fmod full full_like gcd ge gt iota isfinite le log log10 log1p log2 lt maximum minimum mul ne neg pow prod reciprocal remainder reshape
rev round rsqrt scalar_tensor sign signbit sin sinh split_dim sqrt squeeze sub sum tan tanh transpose trunc var view_of where
"""
_QUANTIZED = """
quantize_per_tensor quantize_per_channel quantize_per_token dequantize_per_tensor dequantize_per_channel dequantize_per_token
choose_qparams choose_qparams_symmetric choose_qparams_per_token choose_qparams_per_token_asymmetric fake_quant_per_channel
convert_element_type
"""
_HIGHER_ORDER = "associative_scan cond invoke_subgraph map_impl scan while_loop wrap_with_autocast wrap_with_set_grad_enabled"
_TORCHVISION = "deform_conv2d nms ps_roi_align ps_roi_pool roi_align roi_pool"

EXPORTED: dict[str, frozenset[str]] = {
    "aten": frozenset(_ATEN.split()),
    "prim": frozenset(("device", "dtype", "layout")),
    "prims": frozenset(_PRIMS.split()),
    "quantized_decomposed": frozenset(_QUANTIZED.split()),
    "higher_order": frozenset(_HIGHER_ORDER.split()),
    "torchvision": frozenset(_TORCHVISION.split()),
}
"""What a graph of torch.export calls."""
SCRIPTED: dict[str, frozenset[str]] = {
    "aten": frozenset((*_ATEN.split(), *_SCALARS.split())),
    "prim": frozenset(_PRIM.split()),
    "torchvision": EXPORTED["torchvision"],
}
"""Kinds of nodes of a TorchScript graph."""

_EXPORTED_NAME = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?", re.ASCII)
_PYTHON = re.compile(
    r"torch\.(?:_?sym_(?:int|float|max|min|not|sum|ite|sqrt|cos|cosh|sin|sinh|tan|tanh|asin|acos|atan|log2|fresh_size))"
    r"|math\.(?:ceil|floor|trunc|sqrt|pow|exp|log|log2|cos|sin|tan|prod)"
    r"|_operator\.(?:add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|invert|lshift|rshift|getitem)",
    re.ASCII,
)


def is_exported(target: str) -> bool:
    """Whether a graph of torch.export may call *target*.

    >>> is_exported("torch.ops.aten.relu_.default"), is_exported("torch.ops.aten.from_file.default")
    (True, False)
    """
    found = _EXPORTED_NAME.fullmatch(target)
    if found is None:
        return _PYTHON.fullmatch(target) is not None
    return _is_listed(EXPORTED, found[1], found[2])


def is_scripted(kind: str) -> bool:
    """Whether a TorchScript graph may have nodes of *kind*.

    >>> is_scripted("aten::conv2d"), is_scripted("aten::save"), is_scripted("prim::Print")
    (True, False, False)
    """
    namespace, _, name = kind.partition("::")
    return _is_listed(SCRIPTED, namespace, name)


def _is_listed(table: dict[str, frozenset[str]], namespace: str, name: str) -> bool:
    names = table.get(namespace, frozenset())
    return name in names or (namespace == "aten" and name.removesuffix("_") in names)


# Files of PyTorch, taken apart and written again from the parts that were understood.
#
# A ``.pt2`` file (torch.export) holds JSON and raw tensors, but also pickles, expressions that torch evaluates and names of
# functions that it imports. A TorchScript file holds a pickle and source code. Torch reads such a file in several places with
# rules of its own, so an inspected file is never given to it. The functions here return a new archive: JSON that is built from
# fields with known meaning, the bytes of tensors whose shape fits them, and for TorchScript a pickle whose every opcode was
# read. Everything else in the file raises an error.


MAX_TEXT = 1 << 28
"""Bytes of all texts and pickles in an archive, unpacked."""
FREE_TEXT, MAX_RATIO = 4 << 20, 16
"""Bytes of texts that any archive may have, and that each byte of an archive may add: code of a network shrinks to a sixth."""
MAX_TENSOR = 1 << 32
"""Bytes of one tensor: an ONNX file cannot hold as much."""
MAX_EXPRESSION = 10_000
"""Characters of an expression of sizes."""

_TRUST = (
    "if you trust the file, pass --trust (trust=True), which loads it in this process without checks; "
    "or write an ONNX model in the program that made the file, and compile that"
)
Reader = Callable[[Any], Any]


class _Unknown(Exception):
    """A part of a program that is not understood; the text names it."""


def rejection(path: Path, what: str) -> CompileError:
    """The error for a file with a part that is not read."""
    return CompileError(f"{path} {what}: only networks and their weights are read from such files", hint=_TRUST)


# archives


def sound_archive(path: Path) -> zipfile.ZipFile:
    """An archive whose directory is one, at the end of the file, and names each part once."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None
    names = archive.namelist()
    if not _has_one_directory(path) or len(set(names)) != len(names):
        archive.close()
        raise rejection(path, "is an archive with parts that hide others")
    return archive


def _has_one_directory(path: Path) -> bool:
    """Whether the directory begins where the last record of the file states, and ends at that record."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
        file.seek(max(0, size - 98))
        tail = file.read()
    mark, disk, _, _, _, length, start, comment = struct.unpack("<4s4H2LH", tail[-22:])
    end = size - 22
    if b"PK\x06\x07" in tail[-42:-38]:  # a directory with numbers of 64 bits
        if len(tail) != 98 or tail[:4] != b"PK\x06\x06":
            return False
        record, length, start = *struct.unpack("<Q", tail[4:12]), *struct.unpack("<2Q", tail[40:56])
        end = size - 98
        if record != 44 or struct.unpack("<Q", tail[64:72])[0] != end:
            return False
    return bool(mark == b"PK\x05\x06" and disk == 0 and comment == 0 and start + length == end)


class _Parts:
    """The parts of an archive of torch by their names below the one folder at its top."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        roots = {entry.filename.partition("/")[0] for entry in archive.infolist()}
        if len(roots) != 1:
            raise rejection(path, "is no archive of torch")
        self._entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        self._texts = 0

    def names(self) -> list[str]:
        return list(self._entries)

    def text(self, name: str) -> bytes:
        """A text or a pickle, unpacked."""
        entry = self._entries.get(name)
        if entry is None:
            raise rejection(self._path, f"has no part {name}")
        self._texts += entry.file_size
        _check_texts(self._path, self._texts)
        return self._read(entry)

    def tensor(self, name: str) -> bytes:
        """The bytes of a tensor, which torch does not compress."""
        entry = self._entries.get(name)
        if entry is None:
            raise rejection(self._path, f"has no part {name}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise rejection(self._path, f"has a compressed tensor ({name})")
        return self._read(entry)

    def _read(self, entry: zipfile.ZipInfo) -> bytes:
        return _unpacked(self._path, self._archive, entry)


def _check_texts(path: Path, size: int) -> None:
    """Raise where texts of *size* bytes unpack to far more than the archive: reading JSON takes 30 times its size in memory."""
    if size > min(MAX_TEXT, FREE_TEXT + MAX_RATIO * path.stat().st_size):
        raise CompileError(f"{path} unpacks to texts of {size} bytes, too many for its size", hint="save it again")


def _unpacked(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise rejection(path, f"has a part that is compressed in another way ({entry.filename[:100]!r})")
    try:
        return archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None


def _written(parts: Mapping[str, bytes]) -> BinaryIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in parts.items():
            archive.writestr(f"network/{name}", content)
    file.seek(0)
    return file


# JSON that is rebuilt from what is understood


def _record(fields: Mapping[str, Reader], optional: tuple[str, ...] = ()) -> Reader:
    """An object with these fields; those of *optional* may be missing."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unknown(f"has {_short(value)} in place of an object")
        unknown = next((key for key in value if key not in fields), None)
        if unknown is not None:
            raise _Unknown(f"has the field {unknown[:100]!r}")
        missing = next((key for key in fields if key not in value and key not in optional), None)
        if missing is not None:
            raise _Unknown(f"lacks the field {missing!r}")
        return {key: fields[key](entry) for key, entry in value.items()}

    return read


def _union(kinds: Mapping[str, Reader]) -> Reader:
    """An object with one field of several."""
    read_any = _record(kinds, tuple(kinds))

    def read(value: Any) -> Any:
        result = read_any(value)
        if len(result) != 1:
            raise _Unknown(f"has {_short(value)} in place of one value")
        return result

    return read


def _each(kind: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Unknown(f"has {_short(value)} in place of a list")
        return [kind(entry) for entry in value]

    return read


def _by_name(kind: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unknown(f"has {_short(value)} in place of an object")
        return {_path_name(key): kind(entry) for key, entry in value.items()}

    return read


def _or_none(kind: Reader) -> Reader:
    return lambda value: None if value is None else kind(value)


def _later(name: str) -> Reader:
    return lambda value: _KINDS[name](value)


def _short(value: Any) -> str:
    return repr(value)[:100]


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unknown(f"has {_short(value)} in place of a boolean")
    return value


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise _Unknown(f"has {_short(value)} in place of an integer")
    return value


def _float(value: Any) -> float | str:
    if value in ("Infinity", "-Infinity", "NaN") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value  # type: ignore[no-any-return]
    raise _Unknown(f"has {_short(value)} in place of a number")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_EXPRESSION:
        raise _Unknown(f"has {_short(value)} in place of a text")
    return value


def _matching(pattern: str, what: str) -> Reader:
    compiled = re.compile(pattern, re.ASCII)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise _Unknown(f"has {_short(value)} in place of {what}")
        return value

    return read


_name = _matching(r"\w+", "a name")
_path_name = _matching(r"[\w.:\-]*", "the name of a tensor")
_version = _matching(r"[\w.+<=]*", "a version")


def _nothing(value: Any) -> dict[str, Any]:
    """Notes about source code, which are not taken over."""
    if not isinstance(value, dict):
        raise _Unknown(f"has {_short(value)} in place of an object")
    return {}


def _no_guards(value: Any) -> list[Any]:
    """Conditions on inputs as Python code, which are not taken over."""
    if not isinstance(value, list):
        raise _Unknown(f"has {_short(value)} in place of a list")
    return []


def _empty(value: Any) -> Any:
    if value:
        raise _Unknown(f"has an object of a class of its own ({_short(value)})")
    return value


def _target(value: Any) -> str:
    if not isinstance(value, str) or not is_exported(value):
        raise _Unknown(f"calls {_short(value)}")
    return value


def _device(value: Any) -> dict[str, Any]:
    """Tensors of other devices are read on the CPU."""
    if not isinstance(value, dict) or value.get("type") not in ("cpu", "cuda", "mps", "xpu"):
        raise _Unknown(f"has the device {_short(value)}")
    return {"type": "cpu", "index": None}


def _tree(value: Any) -> str:
    """How arguments are nested: JSON in a text, whose contexts are JSON in a text again."""
    document = _json(value)
    if not isinstance(document, list) or len(document) != 2 or document[0] != 1:
        raise _Unknown(f"nests its arguments as {_short(value)}")
    return json.dumps([1, _tree_node(document[1])])


def _tree_node(node: Any) -> dict[str, Any]:
    if (
        not isinstance(node, dict)
        or set(node) != {"type", "context", "children_spec"}
        or not isinstance(node["children_spec"], list)
    ):
        raise _Unknown(f"nests its arguments as {_short(node)}")
    kind, context, children = node["type"], node["context"], [_tree_node(child) for child in node["children_spec"]]
    if kind is None and context is None and not children:
        return {"type": None, "context": None, "children_spec": []}
    if kind in ("builtins.tuple", "builtins.list"):
        if context is not None and _json(context) is not None:
            raise _Unknown(f"nests its arguments with {_short(context)}")
        return {"type": kind, "context": "null", "children_spec": children}
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = _json(context)
        if not isinstance(keys, list) or not all(isinstance(key, (str, int)) for key in keys):
            raise _Unknown(f"nests its arguments with {_short(context)}")
        return {"type": kind, "context": json.dumps(keys), "children_spec": children}
    raise _Unknown(f"nests its arguments in {_short(kind)}")


_SYMBOL = re.compile(r"[a-z]{0,3}[a-z]\d+|int_oo|oo|nan|True|False", re.ASCII)
_ASSUMPTION = re.compile(r"positive|integer|real|negative|nonnegative|evaluate", re.ASCII)
_FUNCTION = re.compile(
    r"OpaqueUnaryFn_\w+|"
    r"Abs|Add|And|BitwiseFn_bitwise_and|BitwiseFn_bitwise_or|BitwiseFn_bitwise_xor|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|"
    r"ExprCondPair|Float|FloatPow|FloatTrueDiv|FloorDiv|FloorToInt|Ge|GreaterThan|Gt|Identity|Integer|IntTrueDiv|Le|LessThan|"
    r"LShift|Lt|Max|Min|Mod|ModularIndexing|Mul|Ne|Not|Or|Piecewise|Pow|PowByNatural|PythonMod|Rational|RoundDecimal|"
    r"RoundToInt|RShift|StrictGreaterThan|StrictLessThan|Symbol|ToFloat|TruncToFloat|TruncToInt|Tuple|Unequality|Where|"
    r"ceiling|exp|floor|log|log2|sqrt",
    re.ASCII,
)
"""Functions of sizes."""
_PLAIN_NODES = (
    *(ast.Expression, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple),
    *(ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def _expression(value: Any) -> str:
    """An expression of sizes; torch evaluates it as Python."""
    try:
        tree = ast.parse(_text(value).strip(), mode="eval")
        sound = all(_is_plain(node) for node in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        sound = False
    if not sound:
        raise _Unknown(f"has the expression {_short(value)}")
    return str(value)


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _FUNCTION.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Name):
        return _SYMBOL.fullmatch(node.id) is not None or _FUNCTION.fullmatch(node.id) is not None
    if isinstance(node, ast.keyword):
        return node.arg is not None and _ASSUMPTION.fullmatch(node.arg) is not None
    if isinstance(node, ast.Constant):
        number = isinstance(node.value, (int, float)) and abs(node.value) < 1 << 64
        return number or (isinstance(node.value, str) and _SYMBOL.fullmatch(node.value) is not None)
    return isinstance(node, _PLAIN_NODES)


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise _Unknown(f"has {_short(text)} in place of JSON") from None


_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2}
_WIDTHS.update(dict.fromkeys((29, 30, 31, 32, 33), 1))
_WIDTHS.update({34: 4, 35: 8})
"""Bytes of an element, by the number that torch gives a type."""


def _dtype(value: Any) -> int:
    if _int(value) not in _WIDTHS:
        raise _Unknown(f"has tensors of the type {_short(value)}")
    return int(value)


_hint = _union({"as_int": _int, "as_bool": _bool, "as_float": _float})
_expr = _record({"expr_str": _expression, "hint": _or_none(_hint)}, ("hint",))
_sym_int = _union({"as_expr": _expr, "as_int": _int})
_tensor_name = _record({"name": _name})
_optional_tensor = _union({"as_tensor": _tensor_name, "as_none": _bool})
_sym_int_argument = _union({"as_name": _name, "as_int": _int})
_sym_float_argument = _union({"as_name": _name, "as_float": _float})
_sym_bool_argument = _union({"as_name": _name, "as_bool": _bool})
_tensor_meta = _record(
    {
        "dtype": _dtype,
        "sizes": _each(_sym_int),
        "requires_grad": _bool,
        "device": _device,
        "strides": _each(_sym_int),
        "storage_offset": _sym_int,
        "layout": _int,
    }
)
_argument = _union(
    {
        "as_none": _bool,
        "as_tensor": _tensor_name,
        "as_tensors": _each(_tensor_name),
        "as_int": _int,
        "as_ints": _each(_int),
        "as_float": _float,
        "as_floats": _each(_float),
        "as_string": _text,
        "as_strings": _each(_text),
        "as_sym_int": _sym_int_argument,
        "as_sym_ints": _each(_sym_int_argument),
        "as_scalar_type": _int,
        "as_memory_format": _int,
        "as_layout": _int,
        "as_device": _device,
        "as_bool": _bool,
        "as_bools": _each(_bool),
        "as_sym_bool": _sym_bool_argument,
        "as_sym_bools": _each(_sym_bool_argument),
        "as_graph": _record({"name": _name, "graph": _later("graph")}),
        "as_optional_tensors": _each(_optional_tensor),
        "as_operator": _target,
        "as_sym_float": _sym_float_argument,
        "as_sym_floats": _each(_sym_float_argument),
        "as_optional_tensor": _optional_tensor,
        "as_complex": _record({"real": _float, "imag": _float}),
        "as_nested_tensors": _each(_each(_tensor_name)),
        "as_int_lists": _each(_each(_int)),
        "as_float_lists": _each(_each(_float)),
        "as_string_to_argument": _by_name(_later("argument")),
    }
)
_node = _record(
    {
        "target": _target,
        "inputs": _each(_record({"name": _matching(r"\w*", "a name"), "arg": _argument, "kind": _or_none(_int)}, ("kind",))),
        "outputs": _each(_argument),
        "metadata": _nothing,
        "is_hop_single_tensor_return": _or_none(_bool),
        "name": _or_none(_name),
    },
    ("is_hop_single_tensor_return", "name"),
)
_graph = _record(
    {
        "inputs": _each(_argument),
        "outputs": _each(_argument),
        "nodes": _each(_node),
        "tensor_values": _by_name(_tensor_meta),
        "sym_int_values": _by_name(_sym_int),
        "sym_bool_values": _by_name(_union({"as_expr": _expr, "as_bool": _bool})),
        "is_single_tensor_return": _bool,
        "custom_obj_values": _empty,
        "sym_float_values": _by_name(_union({"as_expr": _expr, "as_float": _float})),
    },
    ("is_single_tensor_return", "custom_obj_values", "sym_float_values"),
)
_KINDS: dict[str, Reader] = {"graph": _graph, "argument": _argument}
_constant = _union({"as_none": _bool, "as_int": _int, "as_float": _float, "as_string": _text, "as_bool": _bool})
_input = _union(
    {
        "user_input": _record({"arg": _argument}),
        "parameter": _record({"arg": _tensor_name, "parameter_name": _path_name}),
        "buffer": _record({"arg": _tensor_name, "buffer_name": _path_name, "persistent": _bool}),
        "tensor_constant": _record({"arg": _tensor_name, "tensor_constant_name": _path_name}),
        "constant_input": _record({"name": _name, "value": _constant}),
    }
)
_output = _union(
    {
        "user_output": _record({"arg": _argument}),
        "buffer_mutation": _record({"arg": _tensor_name, "buffer_name": _path_name}),
        "user_input_mutation": _record({"arg": _tensor_name, "user_input_name": _name}),
    }
)
_signature = _record(
    {
        "inputs": _each(_argument),
        "outputs": _each(_argument),
        "in_spec": _tree,
        "out_spec": _tree,
        "forward_arg_names": _or_none(_each(_name)),
    },
    ("forward_arg_names",),
)
_program = _record(
    {
        "graph_module": _record(
            {
                "graph": _graph,
                "signature": _record({"input_specs": _each(_input), "output_specs": _each(_output)}),
                "module_call_graph": _each(_record({"fqn": _path_name, "signature": _or_none(_signature)}, ("signature",))),
                "metadata": _nothing,
                "treespec_namedtuple_fields": _empty,
            },
            ("metadata", "treespec_namedtuple_fields"),
        ),
        "opset_version": _by_name(_int),
        "range_constraints": _by_name(_record({"min_val": _or_none(_int), "max_val": _or_none(_int)})),
        "schema_version": _record({"major": _int, "minor": _int}),
        "verifiers": _each(_matching("TRAINING|ATEN", "a verifier")),
        "torch_version": _version,
        "guards_code": _no_guards,
    },
    ("verifiers", "torch_version", "guards_code"),
)


def _no_pickle(value: Any) -> bool:
    if value is not False:
        raise _Unknown("has a tensor in a pickle")
    return False


_payloads = _record(
    {
        "config": _by_name(
            _record({"path_name": _name, "is_param": _bool, "use_pickle": _no_pickle, "tensor_meta": _tensor_meta}),
        )
    }
)

_MODEL = "models/model.json"
_EXPORTED_PARTS = re.compile(
    r"models/model\.json|archive_format|archive_version|byteorder|version|data/sample_inputs/model\.pt"
    r"|data/(weights|constants)/(model_(weights|constants)_config\.json|\w+)|\.data/\w+|extra/.*",
    re.ASCII,
)


def written_again_exported(path: Path) -> BinaryIO:
    """A ``.pt2`` file with the graph and the tensors of *path*, and nothing else of it.

    Notes about source code, conditions on inputs, examples and further files are left out.

    :raises CompileError: the file has a part, a field or an operator that is not on the lists
    """
    with sound_archive(path) as archive:
        if any(name.startswith("serialized_") for name in archive.namelist()):
            raise rejection(path, "was saved by torch 2.7 or older, which keeps tensors in pickles")
        parts = _Parts(path, archive)
        for name in parts.names():
            if not _EXPORTED_PARTS.fullmatch(name):
                raise rejection(path, f"has the part {name[:100]!r}")
        try:
            if parts.text("archive_format") != b"pt2" or parts.text("byteorder") != b"little":
                raise _Unknown("is of another format")
            program = _program(_json(parts.text(_MODEL)))
            entries = program["graph_module"]["module_call_graph"]
            program["graph_module"]["module_call_graph"] = [entry for entry in entries if not entry["fqn"]]
            fresh: dict[str, bytes] = {
                "archive_format": b"pt2",
                "archive_version": _digits(parts.text("archive_version")),
                "byteorder": b"little",
                "version": b"6",
                ".data/version": b"6",
                _MODEL: json.dumps(program).encode(),
                "data/sample_inputs/model.pt": b"",
            }
            for kind, start in (("weights", "weight"), ("constants", "tensor")):
                fresh.update(_tensors(parts, kind, start))
        except _Unknown as error:
            raise rejection(path, str(error)) from None
        except RecursionError:
            raise rejection(path, "nests graphs too deep") from None
    return _written(fresh)


def _digits(text: bytes) -> bytes:
    if not re.fullmatch(rb"\d{1,4}", text):
        raise _Unknown(f"has the version {text[:20]!r}")
    return text


def _tensors(parts: _Parts, kind: str, start: str) -> dict[str, bytes]:
    """Raw tensors and their table, under names of our own."""
    table = f"data/{kind}/model_{kind}_config.json"
    payloads = _payloads(_json(parts.text(table)))
    fresh: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for payload in payloads["config"].values():
        stored = payload["path_name"]
        if stored not in names:
            names[stored] = f"{start}_{len(names)}"
            fresh[f"data/{kind}/{names[stored]}"] = parts.tensor(f"data/{kind}/{stored}")
        payload["path_name"] = names[stored]
        _check_extent(payload["tensor_meta"], len(fresh[f"data/{kind}/{names[stored]}"]))
    fresh[table] = json.dumps(payloads).encode()
    return fresh


def _check_extent(meta: dict[str, Any], nbytes: int) -> None:
    """Raise where a tensor has elements that its bytes do not hold."""
    sizes = [entry.get("as_int", -1) for entry in meta["sizes"]]
    strides = [entry.get("as_int", -1) for entry in meta["strides"]]
    offset = meta["storage_offset"].get("as_int", -1)
    if len(sizes) != len(strides) or min((offset, *sizes, *strides)) < 0 or len(sizes) > 16 or meta["layout"] != 7:
        raise _Unknown("has a tensor without a fixed shape")
    used = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if math.prod(sizes) else 0
    if used * _WIDTHS[meta["dtype"]] > nbytes:
        raise _Unknown(f"has a tensor of {used} elements in {nbytes} bytes")
    if math.prod(sizes) * _WIDTHS[meta["dtype"]] > MAX_TENSOR:
        raise _Unknown(f"has a tensor of {math.prod(sizes)} elements")


# TorchScript

_SCRIPT_PARTS = re.compile(
    r"(?P<keep>data\.pkl|constants\.pkl|version|byteorder|\.data/version|code/[\w/]+\.py|(data|constants|tensors)/\w+)"
    r"|(code/[\w/]+\.py|constants\.pkl|data\.pkl)\.debug_pkl|traced_inputs(/\w+|\.pkl)|\.data/\w+|\.format_version|\.storage_alignment|extra/.*",
    re.ASCII,
)
_CODE_AT_LOADING = (b"__setstate__", b"torch.classes")
"""Names of source code that torch runs while it reads a file."""
_SCRIPT_GLOBAL = re.compile(
    r"__torch__ \w+|__torch__(\.\w+)+ \w+|collections OrderedDict|torch\._utils _rebuild_tensor(_v2)?|torch device|torch Size"
    r"|torch\.jit\._pickle (build_(int|tensor|double|bool)list|restore_type_tag)"
    r"|torch (\w+Storage|u?int\d+|float\d+(_\w+)?|bfloat16|bool|complex\d+|qu?int\d+)",
    re.ASCII,
)
_PICKLE_NAMES = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINSTRING
SHORT_BINSTRING EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS DICT BINPUT
LONG_BINPUT BINGET LONG_BINGET GLOBAL REDUCE BUILD NEWOBJ BINPERSID
"""
_PICKLE_OPCODES = frozenset(_PICKLE_NAMES.split())


def written_again_script(path: Path) -> BinaryIO:
    """A TorchScript file with the code and the tensors of *path*, and nothing else of it.

    :raises CompileError: the file has a part that is not known, or code that torch would run while it reads the file
    """
    with sound_archive(path) as archive:
        parts = _Parts(path, archive)
        fresh: dict[str, bytes] = {}
        for name in parts.names():
            found = _SCRIPT_PARTS.fullmatch(name)
            if found is None:
                raise rejection(path, f"has the part {name[:100]!r}")
            if found["keep"]:
                fresh[name] = parts.tensor(name) if name.startswith(("data/", "constants/", "tensors/")) else parts.text(name)
        try:
            for name, content in fresh.items():
                if name.endswith(".py"):
                    for word in _CODE_AT_LOADING:
                        if word in content:
                            raise _Unknown(f"has code that runs while it is read ({word.decode()})")
                elif name.endswith(".pkl"):
                    _check_pickle(content)
        except _Unknown as error:
            raise rejection(path, str(error)) from None
    return _written(fresh)


def _check_pickle(data: bytes) -> None:
    """Raise unless *data* is one pickle of the kind that TorchScript writes."""
    end = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name not in _PICKLE_OPCODES:
                raise _Unknown(f"has a pickle with the opcode {opcode.name}")
            if opcode.name == "GLOBAL" and not _SCRIPT_GLOBAL.fullmatch(str(argument)):
                raise _Unknown(f"has a pickle that names {_short(argument)}")
            if opcode.name == "GLOBAL" and "torch.classes" in str(argument):
                raise _Unknown(f"has an object of the library class {_short(argument)}")
            end = (position or 0) + 1
    except (ValueError, IndexError, RecursionError, AttributeError) as error:
        raise _Unknown(f"has a pickle that cannot be read ({type(error).__name__})") from None
    if end != len(data):
        raise _Unknown("has a pickle with bytes after its end")


def check_graphs(path: Path, graphs: Any, is_listed: Callable[[str], bool]) -> None:
    """Raise unless all nodes of loaded TorchScript graphs are of kinds that a network may use."""
    left = list(graphs)
    while left:
        block = left.pop()
        for node in block.nodes():
            kind = str(node.kind())
            if not is_listed(kind):
                raise rejection(path, f"calls {kind}")
            left += node.blocks()
            for name in node.attributeNames():
                if node.kindOf(name) in ("g", "gs"):
                    raise rejection(path, f"has a graph inside {kind}")


_KERAS_MODULE = re.compile(
    r"(keras|keras\.src|tf_keras|tf_keras\.src|tensorflow\.keras|tensorflow\.python\.keras)"
    r"(\.(layers|models|engine|initializers|regularizers|constraints|optimizers|losses|metrics|activations|dtype_policies|quantizers|ops)(\.\w+)*)?"
)
_KERAS_CODE = frozenset(("Lambda", "__lambda__", "function", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"))
_TENSORFLOW_CODE = (b"EagerPyFunc", b"PyFunc", b"WriteFile", b"ReadFile", b"LoadLibrary")


def check_keras_file(path: Path) -> None:
    """Reject a Keras file that names anything but Keras' own layers."""
    if zipfile.is_zipfile(path):
        with sound_archive(path) as archive:
            if "config.json" not in archive.namelist():
                raise rejection(path, "has no config.json")
            text = _archive_text(path, archive, archive.getinfo("config.json"))
    else:
        try:
            with importlib.import_module("h5py").File(path, "r") as file:
                raw = file.attrs["model_config"]
        except (OSError, KeyError, ImportError) as error:
            raise CompileError(
                f"{path} is no model of Keras: {error}", hint="save the whole model: model.save('model.keras')"
            ) from None
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    document = _parsed_description(path, text)
    if isinstance(document, dict):
        document.pop("compile_config", None)  # what a model is trained with is not read
    for key, value in _entries(document):
        if key == "class_name" and str(value) in _KERAS_CODE:
            raise rejection(path, f"has a part of the kind {value}, which runs code of the file")
        if key == "class_name" and isinstance(value, str) and not value[:1].isupper() and not value.startswith("__"):
            raise rejection(path, f"names the function {value[:60]!r}")
        if key == "module" and value is not None and not (isinstance(value, str) and _KERAS_MODULE.fullmatch(value)):
            raise rejection(path, f"names the module {str(value)[:60]!r}")


def check_saved_model(folder: Path) -> None:
    """Reject a SavedModel whose graph runs Python or uses files."""
    data = (folder / "saved_model.pb").read_bytes()
    for name in _TENSORFLOW_CODE:
        if name in data:
            raise rejection(folder, f"has the operator {name.decode()}")


def _archive_text(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    _check_texts(path, entry.file_size)
    return _unpacked(path, archive, entry).decode("utf-8", "replace")


def _parsed_description(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CompileError(f"{path} is damaged: its description is no JSON", hint="save it again") from None


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All names with their values, at any depth."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from one.items()
            left += one.values()
        elif isinstance(one, list):
            left += one
