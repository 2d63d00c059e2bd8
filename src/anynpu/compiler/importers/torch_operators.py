"""Operators of PyTorch that a network may use, by namespace. A file that uses any other is rejected before anything of it runs.

The lists hold operators on tensors, numbers and shapes that use no files, processes or threads. A name stands for all
its overloads, and for the operator that writes to its argument (``relu_`` for ``relu``).
"""

from __future__ import annotations

import re

__all__ = ["EXPORTED", "SCRIPTED", "is_exported", "is_scripted"]

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
