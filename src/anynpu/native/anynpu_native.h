/* The functions of the extension module anynpu._native.
 *
 * Pointers and descriptors in, bytes out: no Python objects, no allocation, no locks (but for the threads of a pool, where one is used). The
 * build script hands this text and engine.h, without their preprocessor lines, to cffi; so they stay within what cffi can read. Calls from
 * Python run without the GIL. */
#ifndef ANYNPU_NATIVE_H
#define ANYNPU_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "engine.h"

/* ---- instruction sets: the best is chosen at the first call ---- */

int anynpu_level_count(void);
const char *anynpu_level_name(int level);
const char *anynpu_level(void);
/* Whether the processor has it. */
int anynpu_has_level(int level);
/* 1 where the processor has it. For tests and comparisons: the results do not depend on it. */
int anynpu_use_level(const char *name);
/* Does nothing but multiply and add, as fast as the chosen level can, and returns how many multiply-accumulates that were. Who takes the
 * time of it knows what a convolution can reach at the most. */
uint64_t anynpu_peak(uint64_t rounds);

/* ---- statistics; NaN counts nowhere ---- */

/* range[0] is the smallest and range[1] the largest value; infinity and -infinity where there is none. */
void anynpu_minmax_f32(const float *values, size_t count, float range[2]);
/* The same per channel of an NCHW tensor. */
void anynpu_minmax_channels_f32(const float *values, size_t n, size_t c, size_t hw, float *low, float *high);
/* Adds to counts[(int)((value - low) * inverse_step)], the index clamped to the first and last bin. */
void anynpu_histogram_f32(const float *values, size_t count, float low, float inverse_step, uint32_t bins, uint64_t *counts);

enum anynpu_worst { ANYNPU_FINITE, ANYNPU_INFINITE, ANYNPU_NAN };

/* The worst that values of an enum anynpu_type hold, as an enum anynpu_worst. Integers are finite. */
int anynpu_worst_float(int type, const void *values, size_t count);

/* ---- what a convolution sees ---- */

struct anynpu_window {
    int32_t channels, height, width, out_height, out_width;
    int32_t kernel[2], strides[2], dilations[2], pads[2];
};

/* What a convolution sees of NCHW values at positions of its output, which count over batch, height and width:
 * columns[position][channel][tap], 0 in the padding. taps is scratch space for as many as the kernel has. */
void anynpu_columns_f32(const struct anynpu_window *window, const float *values, const int64_t *positions, size_t count, int64_t *taps,
                        float *columns);
/* The same as columns[channel][tap][position], with stride floats from one tap to the next. taps is scratch space for as many as all
 * positions have, and one more. */
void anynpu_channel_columns_f32(const struct anynpu_window *window, const float *values, const int64_t *positions, size_t count,
                                int64_t *taps, size_t stride, float *columns);

/* Rounds columns of weights, columns[column][output], one after the other to whole multiples of size within lowest and highest, each making
 * up for what those before it have lost.
 *
 * energy[column][column], with stride doubles from one row to the next, states how columns go together, and gradient[column][output] what is
 * missing; it is changed. differences receives by how much each weight has become smaller. Returns whether any has moved. */
int anynpu_round_columns_f64(size_t columns, size_t outputs, const double *energy, size_t stride, const double *size,
                             const double *lowest, const double *highest, double *gradient, double *chosen, double *differences);

/* ---- boxes ---- */

/* Goes through boxes (left, top, right, bottom) in this order and keeps each that overlaps no kept one of its class by more than overlap
 * (intersection over union), at most so many. kept receives their indices; returns how many. */
size_t anynpu_suppress_f64(const double *boxes, const int64_t *classes, const int64_t *order, size_t count, double overlap, size_t most,
                           int64_t *kept);

/* ---- conversions ---- */

enum anynpu_type {
    ANYNPU_F32,
    ANYNPU_F16,
    ANYNPU_BF16,
    ANYNPU_I8,
    ANYNPU_U8,
    ANYNPU_I16,
    ANYNPU_U16,
    ANYNPU_I32,
    ANYNPU_U32,
    ANYNPU_I64,
    ANYNPU_U64,
    ANYNPU_BOOL,
    ANYNPU_TYPES
};

/* How a tensor lies in memory: [n][c1][d][h_stride][w_stride][c2]. NCHW has blocks of one channel, NHWC one block of all. */
struct anynpu_place {
    int32_t type;
    size_t c1;
    size_t c2;
    size_t h_stride;
    size_t w_stride;
};

enum anynpu_step {
    ANYNPU_MOVE,     /* the elements as they are; both types have the same size */
    ANYNPU_FLIP,     /* byte ^ flip */
    ANYNPU_LINE,     /* clamp((slope * (byte ^ flip) + offset) >> 16, low, high), per channel */
    ANYNPU_TABLE,    /* table[256 * channel + byte] */
    ANYNPU_INTEGERS, /* integers to integers, clamped to low and high */
    ANYNPU_VALUES    /* (code - source_zero) * source_scale, then (x - mean) / std, then the code of that in the target */
};

/* Arrays have one entry, or with by_channel one for each channel of the padded source and target. */
struct anynpu_conversion {
    size_t n, c, d, h, w;
    struct anynpu_place source;
    struct anynpu_place target;
    uint64_t fill; /* what padding in the target becomes: an element in the low bytes */
    int32_t step;
    int32_t by_channel;
    int32_t flip;
    int64_t low, high;
    const int32_t *source_zero;
    const float *source_scale;
    const float *mean; /* NULL: no mean and std */
    const float *std;
    const int32_t *target_zero;
    const float *target_scale;
    const int32_t *slope;
    const int32_t *offset;
    const uint8_t *table;
};

/* One pass from source to target, which must not overlap. */
void anynpu_convert(const struct anynpu_conversion *conversion, const void *source, void *target);

/* Four bits: two elements a byte, the first in the low half; unpacked one a byte, signed ones extended. */
void anynpu_unpack_int4(const uint8_t *source, uint8_t *target, size_t count, int is_signed);
void anynpu_pack_int4(const uint8_t *source, uint8_t *target, size_t count);

/* ---- the integer engine; descriptors are in engine.h ---- */

/* Finds what runs a layer (kind, quantized values and descriptor are set) at a level: its plain C, and a fast kernel where one fits. 0: the
 * processor does not have that level. */
int anynpu_choose(struct anynpu_layer *layer, int level);
/* What was chosen, as text. */
const char *anynpu_kernel_name(const struct anynpu_layer *layer);
/* Bytes of packed weights and of what is packed beside them, which the caller allocates, each aligned to 64; 0 for none. Layers of the same
 * kernel, weights, weight_zero, kh, kw, cin, cout, dw and groups have the same packed weights and may share them. */
size_t anynpu_packed_weights_size(const struct anynpu_layer *layer);
void anynpu_pack_weights(const struct anynpu_layer *layer, void *weights);
size_t anynpu_packed_size(const struct anynpu_layer *layer);
void anynpu_pack(const struct anynpu_layer *layer, const void *weights, void *packed);
/* Bytes that the layer needs while it runs, aligned to 64. */
size_t anynpu_scratch_size(const struct anynpu_layer *layer);

enum anynpu_end { ANYNPU_FINISHED, ANYNPU_STOPPED, ANYNPU_EXPIRED };

/* Runs layers one after the other. Before each it looks whether *stop is not 0, and whether the deadline has passed (nanoseconds of the
 * monotonic clock; negative: there is none).
 *
 * tensors: a pointer for each place that the layers name. scratch: the largest that a layer needs. clock_ns: NULL, or receives the time of
 * each layer. reached: receives how many layers were run. */
int anynpu_execute(const struct anynpu_layer *layers, size_t count, void *const *tensors, void *scratch, const int32_t *stop,
                   int64_t deadline_ns, int64_t *clock_ns, size_t *reached);

/* ---- products of matrices; what is computed is written in matmul.c ---- */

struct anynpu_workers;

/* The right factor b [k][n] for the kernels of one level, which the processor has. */
struct anynpu_matrix {
    int32_t type; /* ANYNPU_I8: the product is int32; ANYNPU_F16: float32 */
    int32_t level;
    size_t k, n; /* at least 1 */
};

/* What multiplies, as text. */
const char *anynpu_matrix_kernel_name(const struct anynpu_matrix *b);

enum anynpu_matrix_order {
    ANYNPU_BY_ROW,    /* [k][n] */
    ANYNPU_BY_COLUMN, /* [n][k] */
    ANYNPU_BLOCKED    /* segments of rows, each [n / block_n][rows / block_k][block_n][block_k] */
};

/* b where its owner keeps it and may change it between two products; nothing of it is remembered. Of all its k rows, the product takes
 * as many as the matrix has, from `first` on. */
struct anynpu_matrix_source {
    int32_t order;
    int32_t bits; /* of an element: 16 for float16; 8 or 4 for quantized values, which become float16 where the matrix is of that type. Elements of
                     four bits are two a byte, the first in the low half; k, n and first are even then */
    size_t k, n;
    size_t first;
    size_t block_k, block_n; /* ANYNPU_BLOCKED: what k and n are multiples of */
    size_t segment;          /* ANYNPU_BLOCKED: rows of a segment, a multiple of block_k; the last may have fewer */
    const int32_t *zero;     /* quantized values that become float16: what is subtracted first, by column; NULL: nothing */
};

/* Bytes that each thread needs, aligned to 64. */
size_t anynpu_matrix_source_scratch_size(const struct anynpu_matrix *b, size_t m);
/* c [m][n] = a [m][k] * b, c without gaps. Reads and writes nothing else than these, and scratch. a_stride: elements from one row of a to the
 * next. workers: NULL, or a pool whose threads share the columns, each with scratch of its own. */
void anynpu_matrix_multiply_source(const struct anynpu_matrix *b, const struct anynpu_matrix_source *source, const void *values,
                                   const void *a, size_t a_stride, size_t m, void *c, struct anynpu_workers *workers, void *scratch);

/* ---- several threads for one run; see workers.h ---- */

/* A pool for so many threads, the caller's among them; fewer where the system gives no more. NULL: none but the caller's. */
struct anynpu_workers *anynpu_workers_open(size_t threads);
/* Whether layers have so much work that can be shared, in products of a fast convolution. */
int anynpu_worth_sharing(const struct anynpu_layer *layers, size_t count, double least);
size_t anynpu_workers_threads(const struct anynpu_workers *workers);
/* Returns when its threads have ended. Not during a run. */
void anynpu_workers_close(struct anynpu_workers *workers);

struct anynpu_sharing {
    struct anynpu_workers *workers;
    size_t threads;      /* used in any case; the others of the pool while processors are idle */
    size_t scratch_step; /* bytes from the scratch of one thread to the next one's, a multiple of 64 */
    uint64_t least_work; /* a layer with less of it runs on the caller's thread alone: as many products of a fast convolution */
};

/* anynpu_execute, with the layers shared by several threads, all but padding and conversions. The bytes are the same. */
int anynpu_execute_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layers, size_t count, void *const *tensors,
                          void *scratch, const int32_t *stop, int64_t deadline_ns, int64_t *clock_ns, size_t *reached);

/* ---- one inference through a library that was loaded at run time ---- */

/* Addresses of the library's functions and of the arguments that they take. */
struct anynpu_inference {
    uintptr_t inputs_set, run, outputs_get, outputs_release;
    uint64_t context;
    uintptr_t inputs, extend, outputs;
    uint32_t input_count, output_count;
};

/* When the inputs were there and when the run had ended, by the monotonic clock; failed: which of the first three calls was the last. */
struct anynpu_inference_times {
    int64_t written, ran;
    int32_t failed;
};

/* The four calls in a row; the code of the first that fails, or 0. */
int anynpu_infer(const struct anynpu_inference *one, struct anynpu_inference_times *times);

#endif
