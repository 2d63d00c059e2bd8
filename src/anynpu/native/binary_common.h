/* Two int8 tensors element by element, for simple_common.h. */
#ifndef ANYNPU_BINARY_COMMON_H
#define ANYNPU_BINARY_COMMON_H

#define AXES 6
#define CHANNEL_AXIS (AXES - 1)
#define SHORTEST_RUN 16 /* elements below which plain C is as good */

/* How an operand moves while the output goes through a dense block of pixels times channels. */
enum pattern { PATTERN_NONE, PATTERN_DENSE, PATTERN_CHANNELS, PATTERN_SCALAR };

struct operand {
    enum pattern pattern;
    const size_t *strides;
    const int32_t *zero;
    const float *multiplier;
    float factor; /* the chip's rule: of its term */
    const int8_t *codes; /* of the block at hand */
};

/* The output as blocks of pixels times channels: outer axes are those before split. */
struct blocks {
    const struct anynpu_binary *binary;
    struct operand left, right;
    size_t split, pixels, channels;
    int uniform; /* all channels have the same numbers */
};

static size_t extent(const size_t *shape, size_t first, size_t last)
{
    size_t product = 1;
    for (size_t axis = first; axis < last; axis++)
        product *= shape[axis];
    return product;
}

static enum pattern pattern_of(const size_t *shape, const size_t *strides, size_t split)
{
    int dense = 1, channels = 1, scalar = 1;
    size_t dense_stride = 1;
    for (size_t axis = AXES; axis-- > split;) {
        if (shape[axis] > 1) {
            dense &= strides[axis] == dense_stride;
            scalar &= strides[axis] == 0;
            channels &= strides[axis] == (axis == CHANNEL_AXIS ? 1 : 0);
        }
        dense_stride *= shape[axis];
    }
    return dense ? PATTERN_DENSE : scalar ? PATTERN_SCALAR : channels ? PATTERN_CHANNELS : PATTERN_NONE;
}

/* As few and as large blocks as the patterns allow. */
static struct blocks blocks_of(const struct anynpu_binary *binary)
{
    struct blocks blocks = {
        .binary = binary,
        .left = {.strides = binary->a_strides, .zero = binary->a_zero, .multiplier = binary->a_multiplier},
        .right = {.strides = binary->b_strides, .zero = binary->b_zero, .multiplier = binary->b_multiplier},
    };
    if (binary->epilogue.fixed != NULL) {
        blocks.left.factor = (float)fixed_factor(binary->a_factor, binary->a_shift);
        blocks.right.factor = (float)fixed_factor(binary->b_factor, binary->b_shift);
    }
    for (; blocks.split < AXES; blocks.split++) {
        blocks.left.pattern = pattern_of(binary->shape, binary->a_strides, blocks.split);
        blocks.right.pattern = pattern_of(binary->shape, binary->b_strides, blocks.split);
        if (blocks.left.pattern != PATTERN_NONE && blocks.right.pattern != PATTERN_NONE)
            break;
    }
    blocks.channels = binary->shape[CHANNEL_AXIS];
    blocks.pixels = blocks.split < AXES ? extent(binary->shape, blocks.split, CHANNEL_AXIS) : 1;
    return blocks;
}

/* Whether the steps of the form FIXED_SINGLE (fixed_forms.h) are exact: terms are rounded as by its first stage, and the sum has no first
 * stage of its own. */
static int fixed_binary_fits(const struct anynpu_binary *binary, size_t channels)
{
    const struct anynpu_epilogue *e = &binary->epilogue;
    const struct anynpu_fixed_point *fixed = e->fixed;
    const int32_t most = 1 << 20;
    if (fixed->channel != NULL || fixed->slope != NULL || fixed->curves != NULL || fixed->residual_multiplier != 0 ||
        !fixed_within(binary->a_factor, -most, most) || !fixed_within(binary->b_factor, -most, most) ||
        !fixed_within(binary->a_shift, 0, 31) || !fixed_within(binary->b_shift, 0, 31))
        return 0;
    for (size_t c = 0; c < channels; c++) {
        double left = farthest(binary->a_zero[c]), right = farthest(binary->b_zero[c]), sum = left * right;
        if (binary->kind != ANYNPU_MUL) {
            left *= fabs(fixed_factor(binary->a_factor, binary->a_shift));
            right *= fabs(fixed_factor(binary->b_factor, binary->b_shift));
            sum = left + right + 1.0;
        }
        if (!fixed_channel_fits(e, c) || left > FIXED_MAX_RESULT || right > FIXED_MAX_RESULT || sum > FIXED_MAX_SUM ||
            sum * fixed_output_factor(fixed, c) + fabs((double)e->zero_point[c]) + 1.0 > FIXED_MAX_RESULT)
            return 0;
    }
    return 1;
}

static int simple_binary_fits(const struct anynpu_binary *binary)
{
    const struct blocks blocks = blocks_of(binary);
    if (blocks.split == AXES || blocks.pixels * blocks.channels < SHORTEST_RUN)
        return 0;
    if (binary->epilogue.fixed != NULL)
        return fixed_binary_fits(binary, blocks.channels);
    return binary->epilogue.residual_multiplier == NULL && epilogue_fits(&binary->epilogue, blocks.channels);
}

static int same_ints(const int32_t *values, size_t count)
{
    for (size_t i = 1; values != NULL && i < count; i++)
        if (values[i] != values[0])
            return 0;
    return 1;
}

static int same_floats(const float *values, size_t count)
{
    for (size_t i = 1; values != NULL && i < count; i++)
        if (values[i] != values[0])
            return 0;
    return 1;
}

static int is_uniform(const struct anynpu_binary *binary, size_t channels)
{
    const struct anynpu_epilogue *e = &binary->epilogue;
    return e->row == NULL && same_ints(binary->a_zero, channels) && same_ints(binary->b_zero, channels) &&
           same_floats(binary->a_multiplier, channels) && same_floats(binary->b_multiplier, channels) &&
           same_ints(e->zero_point, channels) && same_ints(e->low, channels) && same_ints(e->high, channels) &&
           same_floats(e->slope, channels) &&
           (e->fixed == NULL || (same_ints(e->fixed->multiplier, channels) && same_ints(e->fixed->shift, channels) &&
                                 same_ints(e->fixed->low, channels) && same_ints(e->fixed->high, channels)));
}

/* The numbers of LANES channels. */
struct binary_lanes {
    int is_fixed;
    ints left_zero, right_zero;
    floats left_multiplier, right_multiplier, product_multiplier;
    struct finish finish;
    struct fixed_lanes fixed;
};

/* The chip's rule: count channels, which are all lanes or the one that all lanes are like. */
INLINE void binary_lanes_fix(struct binary_lanes *lanes, const struct blocks *blocks, size_t channel, size_t count)
{
    float arrays[FIXED_ARRAYS * LANES] = {0};
    fixed_fill(&blocks->binary->epilogue, channel, count, arrays, LANES);
    for (size_t i = 0; count == 1 && i < FIXED_ARRAYS * LANES; i++)
        arrays[i] = arrays[i / LANES * LANES];
    lanes->is_fixed = 1;
    lanes->fixed = fixed_lanes_load(arrays, LANES);
    lanes->left_multiplier = floats_set(blocks->left.factor);
    lanes->right_multiplier = floats_set(blocks->right.factor);
}

INLINE struct binary_lanes binary_lanes_load(const struct blocks *blocks, size_t channel)
{
    struct binary_lanes lanes = {
        .left_zero = ints_load(blocks->left.zero + channel),
        .right_zero = ints_load(blocks->right.zero + channel),
    };
    if (blocks->binary->epilogue.fixed != NULL) {
        binary_lanes_fix(&lanes, blocks, channel, smaller(LANES, blocks->channels - channel));
        return lanes;
    }
    lanes.left_multiplier = floats_load(blocks->left.multiplier + channel);
    lanes.right_multiplier = floats_load(blocks->right.multiplier + channel);
    lanes.product_multiplier = floats_load(blocks->binary->a_multiplier + channel);
    lanes.finish = finish_load(&blocks->binary->epilogue, channel);
    return lanes;
}

INLINE struct binary_lanes binary_lanes_set(const struct blocks *blocks)
{
    struct binary_lanes lanes = {
        .left_zero = ints_set(blocks->left.zero[0]),
        .right_zero = ints_set(blocks->right.zero[0]),
    };
    if (blocks->binary->epilogue.fixed != NULL) {
        binary_lanes_fix(&lanes, blocks, 0, 1);
        return lanes;
    }
    lanes.left_multiplier = floats_set(blocks->left.multiplier[0]);
    lanes.right_multiplier = floats_set(blocks->right.multiplier[0]);
    lanes.product_multiplier = floats_set(blocks->binary->a_multiplier[0]);
    lanes.finish = finish_set(&blocks->binary->epilogue);
    return lanes;
}

/* An operand's share: the difference to its zero point, scaled but for a product. */
INLINE floats term(const int kind, const int8_t *codes, ints zero, floats multiplier)
{
    const floats difference = floats_from_ints(ints_sub(ints_from_codes(codes), zero));
    return kind == ANYNPU_MUL ? difference : floats_mul(difference, multiplier);
}

INLINE floats combine(const int kind, floats left, floats right, floats product_multiplier)
{
    switch (kind) {
    case ANYNPU_ADD:
        return floats_add(left, right);
    case ANYNPU_SUB:
        return floats_sub(left, right);
    case ANYNPU_MUL:
        return floats_mul(floats_mul(left, right), product_multiplier);
    case ANYNPU_MAX:
        return floats_max(left, right);
    default:
        return floats_min(left, right);
    }
}

/* The same by the chip's rule. */
INLINE floats fixed_term(const int kind, const int8_t *codes, ints zero, floats factor)
{
    const floats difference = floats_from_ints(ints_sub(ints_from_codes(codes), zero));
    return kind == ANYNPU_MUL ? difference : fixed_stage(difference, factor);
}

INLINE floats fixed_combine(const int kind, floats left, floats right)
{
    return kind == ANYNPU_MUL ? floats_mul(left, right) : combine(kind, left, right, left);
}

/* Vectors of up to LANES elements; from one to the next the operands and the output move by their steps. */
struct vectors {
    const int8_t *left, *right;
    int8_t *y;
    size_t left_step, right_step, y_step;
    size_t vectors, count;
};

/* The structures come by value: a store of quantized values may be to anywhere, and what it could change would be loaded again each time. */
INLINE void binary_vectors(const int kind, const int right_stays, const struct binary_lanes lanes, struct vectors v)
{
    const floats constant = term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
    for (; v.vectors > 0; v.vectors--, v.left += v.left_step, v.right += v.right_step, v.y += v.y_step) {
        const floats left = term(kind, v.left, lanes.left_zero, lanes.left_multiplier);
        const floats right = right_stays ? constant : term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
        codes_store(v.y, finish_codes(&lanes.finish, combine(kind, left, right, lanes.product_multiplier)), v.count);
    }
}

INLINE void fixed_vectors(const int kind, const int right_stays, const struct binary_lanes lanes, struct vectors v)
{
    const floats constant = fixed_term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
    for (; v.vectors > 0; v.vectors--, v.left += v.left_step, v.right += v.right_step, v.y += v.y_step) {
        const floats left = fixed_term(kind, v.left, lanes.left_zero, lanes.left_multiplier);
        const floats right = right_stays ? constant : fixed_term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
        codes_store(v.y, fixed_finish(&lanes.fixed, fixed_combine(kind, left, right)), v.count);
    }
}

#define BINARY_CASE(kind)                                                                                                      \
    case kind:                                                                                                                 \
        if (lanes->is_fixed && v->right_step == 0)                                                                             \
            fixed_vectors(kind, 1, *lanes, *v);                                                                                \
        else if (lanes->is_fixed)                                                                                              \
            fixed_vectors(kind, 0, *lanes, *v);                                                                                \
        else if (v->right_step == 0)                                                                                           \
            binary_vectors(kind, 1, *lanes, *v);                                                                               \
        else                                                                                                                   \
            binary_vectors(kind, 0, *lanes, *v);                                                                               \
        break;

static void binary_run(int32_t kind, const struct binary_lanes *lanes, const struct vectors *v)
{
    switch (kind) {
        BINARY_CASE(ANYNPU_ADD)
        BINARY_CASE(ANYNPU_SUB)
        BINARY_CASE(ANYNPU_MUL)
        BINARY_CASE(ANYNPU_MAX)
        BINARY_CASE(ANYNPU_MIN)
    }
}

/* A block whose elements all have the same numbers: one run of vectors, and a shorter one at the end. */
static void binary_flat(const struct blocks *blocks, int8_t *y, size_t count)
{
    const struct binary_lanes lanes = binary_lanes_set(blocks);
    const size_t left_step = blocks->left.pattern == PATTERN_DENSE ? LANES : 0;
    const size_t right_step = blocks->right.pattern == PATTERN_DENSE ? LANES : 0;
    const size_t whole = count / LANES;
    struct vectors v = {blocks->left.codes, blocks->right.codes, y, left_step, right_step, LANES, whole, LANES};
    binary_run(blocks->binary->kind, &lanes, &v);
    if (count % LANES == 0)
        return;
    v = (struct vectors){v.left + whole * left_step, v.right + whole * right_step, y + whole * LANES, 0, 0, 0, 1, count % LANES};
    binary_run(blocks->binary->kind, &lanes, &v);
}

/* Vectors of channels, each down the pixels. */
static void binary_pixels(const struct blocks *blocks, int8_t *y, size_t pixels)
{
    const size_t channels = blocks->channels;
    const struct operand *left = &blocks->left, *right = &blocks->right;
    for (size_t c = 0; c < channels; c += LANES) {
        const struct binary_lanes lanes = binary_lanes_load(blocks, c);
        const struct vectors v = {
            .left = left->codes + (left->pattern == PATTERN_SCALAR ? 0 : c),
            .right = right->codes + (right->pattern == PATTERN_SCALAR ? 0 : c),
            .y = y + c,
            .left_step = left->pattern == PATTERN_DENSE ? channels : 0,
            .right_step = right->pattern == PATTERN_DENSE ? channels : 0,
            .y_step = channels,
            .vectors = pixels,
            .count = channels - c,
        };
        binary_run(blocks->binary->kind, &lanes, &v);
    }
}

/* One block of the output, in pieces, each with its table before the next begins. */
static void binary_block(struct blocks *blocks, int8_t *y)
{
    const struct anynpu_epilogue *e = &blocks->binary->epilogue;
    const int flat =
        blocks->uniform && blocks->left.pattern != PATTERN_CHANNELS && blocks->right.pattern != PATTERN_CHANNELS;
    const size_t channels = flat ? 1 : blocks->channels, pixels = flat ? blocks->pixels * blocks->channels : blocks->pixels;
    const size_t at_once = BLOCK_CODES / channels + 1;
    for (size_t first = 0; first < pixels; first += at_once) {
        const size_t count = smaller(at_once, pixels - first);
        if (flat)
            binary_flat(blocks, y, count);
        else
            binary_pixels(blocks, y, count);
        if (e->table != NULL)
            translate_channels(e->table, e->row, y, channels, y, channels, channels, count);
        blocks->left.codes += blocks->left.pattern == PATTERN_DENSE ? count * channels : 0;
        blocks->right.codes += blocks->right.pattern == PATTERN_DENSE ? count * channels : 0;
        y += count * channels;
    }
}

/* The operand's quantized values in a block; a scalar is spread over a vector. */
static const int8_t *block_codes(const struct blocks *blocks, const struct operand *operand, const int8_t *codes, size_t block,
                                 int8_t spread[LANES])
{
    const size_t *shape = blocks->binary->shape;
    for (size_t axis = blocks->split; axis-- > 0; block /= shape[axis])
        codes += block % shape[axis] * operand->strides[axis];
    if (operand->pattern != PATTERN_SCALAR)
        return codes;
    memset(spread, codes[0], LANES);
    return spread;
}

static void simple_binary(const struct anynpu_binary *binary, const int8_t *a, const int8_t *b, int8_t *y)
{
    struct blocks blocks = blocks_of(binary);
    const size_t count = extent(binary->shape, 0, blocks.split), size = blocks.pixels * blocks.channels;
    int8_t left_spread[LANES], right_spread[LANES];
    blocks.uniform = blocks.pixels > 1 && is_uniform(binary, blocks.channels);
    if (blocks.left.pattern != PATTERN_DENSE && blocks.right.pattern == PATTERN_DENSE && binary->kind != ANYNPU_SUB) {
        /* all but the difference commute, and an operand that stays is cheaper on the right */
        const struct operand left = blocks.left;
        const int8_t *codes = a;
        blocks.left = blocks.right;
        blocks.right = left;
        a = b;
        b = codes;
    }
    for (size_t block = 0; block < count; block++) {
        blocks.left.codes = block_codes(&blocks, &blocks.left, a, block, left_spread);
        blocks.right.codes = block_codes(&blocks, &blocks.right, b, block, right_spread);
        binary_block(&blocks, y + block * size);
    }
}

#endif
