/* The body of operators_conv.c for one kind of quantized values. CODE is what is stored, OPERAND what a difference to a zero point fits into, SUM
 * what a sum of products fits into; SUM is also the type of the bias. */

/* sums[p * stride + c] = sum of x[p] * w[c], over rows of operands, for two pixels and CHANNELS channels. */
static NOINLINE void NAME(multiply)(const OPERAND *restrict x, const OPERAND *restrict w, size_t row, SUM *restrict sums, size_t stride)
{
    const OPERAND *restrict x0 = x, *restrict x1 = x + row;
    const OPERAND *restrict w0 = w, *restrict w1 = w + row, *restrict w2 = w + 2 * row, *restrict w3 = w + 3 * row;
    SUM s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    size_t count = row / ROW * ROW;
    for (size_t i = 0; i < count; i++) {
        s00 += (SUM)x0[i] * w0[i];
        s01 += (SUM)x0[i] * w1[i];
        s02 += (SUM)x0[i] * w2[i];
        s03 += (SUM)x0[i] * w3[i];
        s10 += (SUM)x1[i] * w0[i];
        s11 += (SUM)x1[i] * w1[i];
        s12 += (SUM)x1[i] * w2[i];
        s13 += (SUM)x1[i] * w3[i];
    }
    sums[0] = s00, sums[1] = s01, sums[2] = s02, sums[3] = s03;
    sums[stride] = s10, sums[stride + 1] = s11, sums[stride + 2] = s12, sums[stride + 3] = s13;
}

/* All channels of one output pixel, from sums to quantized values. */
static NOINLINE void NAME(finish_pixel)(const struct anynpu_epilogue *epilogue, const SUM *restrict sums, const SUM *restrict bias,
                               const int32_t *residual_zero, const CODE *residual, CODE *restrict y, size_t channels)
{
    float values[ANYNPU_RUN], differences[ANYNPU_RUN];
    int32_t codes[ANYNPU_RUN];
    for (size_t first = 0; first < channels; first += ANYNPU_RUN) {
        size_t count = channels - first < ANYNPU_RUN ? channels - first : ANYNPU_RUN;
        if (epilogue->fixed != NULL) {
            for (size_t i = 0; i < count; i++)
                codes[i] = anynpu_fixed_code(epilogue, first + i, (int64_t)sums[first + i] + (bias != NULL ? bias[first + i] : 0),
                                             residual != NULL ? residual[first + i] - residual_zero[first + i] : 0);
            STORE(epilogue, first, count, codes, y + first);
            continue;
        }
        if (epilogue->staircases != NULL) {
            for (size_t i = 0; i < count; i++)
                codes[i] = anynpu_stairs_code(epilogue, first + i, (int64_t)sums[first + i] + (bias != NULL ? bias[first + i] : 0));
            STORE(epilogue, first, count, codes, y + first);
            continue;
        }
        const float *restrict multiplier = epilogue->multiplier + first;
        if (bias != NULL)
            for (size_t i = 0; i < count; i++)
                values[i] = (float)(sums[first + i] + bias[first + i]) * multiplier[i];
        else
            for (size_t i = 0; i < count; i++)
                values[i] = (float)sums[first + i] * multiplier[i];
        if (residual != NULL) {
            DIFFERENCES(residual + first, residual_zero + first, count, differences);
            anynpu_add_residual(epilogue, first, count, differences, values);
        }
        anynpu_finish(epilogue, first, count, values, codes);
        STORE(epilogue, first, count, codes, y + first);
    }
}

/* The window of one output pixel, channels [first, first + depth) of the input, as a row of differences. */
static void NAME(gather_window)(const struct anynpu_conv *conv, const CODE *image, const struct axis *rows, size_t t,
                                const struct axis *columns, size_t u, size_t first, size_t depth, OPERAND *restrict row)
{
    for (size_t a = 0; a < rows->taps; a++) {
        ptrdiff_t i = (ptrdiff_t)t * rows->step + rows->offset + (ptrdiff_t)a * rows->offset_step;
        for (size_t b = 0; b < columns->taps; b++, row += depth) {
            ptrdiff_t j = (ptrdiff_t)u * columns->step + columns->offset + (ptrdiff_t)b * columns->offset_step;
            if (i < 0 || j < 0 || i >= (ptrdiff_t)conv->h || j >= (ptrdiff_t)conv->w) {
                memset(row, 0, depth * sizeof *row);
                continue;
            }
            const CODE *restrict x = image + ((size_t)i * conv->w + (size_t)j) * conv->cin + first;
            if (conv->input_zeros == NULL)
                for (size_t c = 0; c < depth; c++)
                    row[c] = (OPERAND)(x[c] - conv->input_zero);
            else
                for (size_t c = 0; c < depth; c++)
                    row[c] = (OPERAND)(x[c] - conv->input_zeros[first + c]);
        }
    }
}

/* The weights of one output channel that the phase has, as a row of differences. */
static void NAME(gather_weights)(const struct anynpu_conv *conv, const struct axis *rows, const struct axis *columns, size_t channel,
                                 size_t depth, OPERAND *restrict row)
{
    const CODE *weights = (const CODE *)conv->weights + channel * conv->kh * conv->kw * depth;
    int32_t zero = conv->weight_zero[channel];
    int all = rows->tap_step == 1 && columns->tap_step == 1 && rows->taps == conv->kh && columns->taps == conv->kw;
    size_t runs = all ? 1 : rows->taps * columns->taps, run = all ? rows->taps * columns->taps * depth : depth;
    for (size_t tap = 0; tap < runs; tap++, row += run) {
        size_t a = all ? 0 : rows->tap + tap / columns->taps * rows->tap_step;
        size_t b = all ? 0 : columns->tap + tap % columns->taps * columns->tap_step;
        const CODE *restrict w = weights + (a * conv->kw + b) * depth;
        for (size_t c = 0; c < run; c++)
            row[c] = (OPERAND)(w[c] - zero);
    }
}

/* Row t of a phase, of one image: output row rows->first + t * rows->out_step. */
static void NAME(conv_row)(const struct anynpu_conv *conv, const CODE *image, const CODE *residual, CODE *y, void *scratch,
                           const struct axis *rows, size_t t, const struct axis *columns)
{
    size_t depth = conv->cin / conv->groups, per_group = conv->cout / conv->groups;
    size_t length = rows->taps * columns->taps * depth, row = whole(length, ROW);
    size_t padded = whole(conv->cout, ANYNPU_CHANNEL_PADDING);
    SUM *sums = scratch;
    OPERAND *windows = (OPERAND *)(sums + PIXELS * padded), *weights = windows + PIXELS * row;
    size_t out_row = (rows->first + t * rows->out_step) * conv->ow;
    for (size_t begin = 0; begin < columns->outputs; begin += PIXELS) {
        size_t count = columns->outputs - begin < PIXELS ? columns->outputs - begin : PIXELS;
        for (size_t group = 0; group < conv->groups; group++) {
            for (size_t p = 0; p < count; p++) {
                NAME(gather_window)(conv, image, rows, t, columns, begin + p, group * depth, depth, windows + p * row);
                memset(windows + p * row + length, 0, (row - length) * sizeof *windows);
            }
            if (count % 2)
                memset(windows + count * row, 0, row * sizeof *windows);
            for (size_t c = 0; c < per_group; c += CHANNELS) {
                size_t channel = group * per_group + c, some = per_group - c < CHANNELS ? per_group - c : CHANNELS;
                for (size_t k = 0; k < some; k++) {
                    NAME(gather_weights)(conv, rows, columns, channel + k, depth, weights + k * row);
                    memset(weights + k * row + length, 0, (row - length) * sizeof *weights);
                }
                memset(weights + some * row, 0, (CHANNELS - some) * row * sizeof *weights);
                for (size_t p = 0; p < count; p += 2) {
                    SUM block[2 * CHANNELS];
                    NAME(multiply)(windows + p * row, weights, row, block, CHANNELS);
                    memcpy(sums + p * padded + channel, block, some * sizeof *sums);
                    memcpy(sums + (p + 1) * padded + channel, block + CHANNELS, some * sizeof *sums);
                }
            }
        }
        for (size_t p = 0; p < count; p++) {
            size_t pixel = (out_row + columns->first + (begin + p) * columns->out_step) * conv->cout;
            NAME(finish_pixel)(&conv->epilogue, sums + p * padded, conv->bias, conv->epilogue.residual_zero,
                               residual == NULL ? NULL : residual + pixel, y + pixel, conv->cout);
        }
    }
}

/* One filter a channel: the innermost loop runs over channels, which lie side by side. */
static void NAME(depthwise)(const struct anynpu_conv *conv, const CODE *x, const CODE *residual, CODE *y, void *scratch,
                            size_t first_row, size_t last_row)
{
    size_t channels = conv->cin, padded = whole(channels, ANYNPU_CHANNEL_PADDING), taps = conv->kh * conv->kw;
    SUM *restrict sums = scratch;
    OPERAND *weights = (OPERAND *)(sums + padded), *zeros = weights + taps * padded;
    for (size_t tap = 0; tap < taps; tap++)
        for (size_t c = 0; c < channels; c++)
            weights[tap * padded + c] = (OPERAND)(((const CODE *)conv->weights)[c * taps + tap] - conv->weight_zero[c]);
    for (size_t c = 0; c < channels; c++)
        zeros[c] = (OPERAND)(conv->input_zeros == NULL ? conv->input_zero : conv->input_zeros[c]);
    for (size_t row = first_row; row < last_row; row++) {
        const CODE *image = x + row / conv->oh * conv->h * conv->w * channels;
        for (size_t column = 0; column < conv->ow; column++) {
            memset(sums, 0, channels * sizeof *sums);
            for (size_t a = 0; a < conv->kh; a++) {
                ptrdiff_t i = (ptrdiff_t)(row % conv->oh * conv->sh + a * conv->dh) - (ptrdiff_t)conv->top;
                if (i < 0 || i >= (ptrdiff_t)conv->h)
                    continue;
                for (size_t b = 0; b < conv->kw; b++) {
                    ptrdiff_t j = (ptrdiff_t)(column * conv->sw + b * conv->dw) - (ptrdiff_t)conv->left;
                    if (j < 0 || j >= (ptrdiff_t)conv->w)
                        continue;
                    const CODE *restrict pixel = image + ((size_t)i * conv->w + (size_t)j) * channels;
                    const OPERAND *restrict w = weights + (a * conv->kw + b) * padded, *restrict zero = zeros;
                    for (size_t c = 0; c < channels; c++)
                        sums[c] += (SUM)(OPERAND)(pixel[c] - zero[c]) * w[c];
                }
            }
            size_t pixel = (row * conv->ow + column) * channels;
            NAME(finish_pixel)(&conv->epilogue, sums, conv->bias, conv->epilogue.residual_zero,
                               residual == NULL ? NULL : residual + pixel, y + pixel, channels);
        }
    }
}

static void NAME(conv)(const struct anynpu_conv *conv, const void *x, const void *residual, void *y, void *scratch,
                       size_t first_row, size_t last_row)
{
    if (conv_is_depthwise(conv)) {
        NAME(depthwise)(conv, x, residual, y, scratch, first_row, last_row);
        return;
    }
    struct axis rows = conv_axis(conv->kh, conv->sh, conv->top, conv->dh, conv->oh);
    struct axis columns = conv_axis(conv->kw, conv->sw, conv->left, conv->dw, conv->ow);
    size_t image_in = conv->h * conv->w * conv->cin, image_out = conv->oh * conv->ow * conv->cout;
    for (size_t row = first_row; row < last_row; row++) {
        size_t n = row / conv->oh;
        NAME(conv_row)(conv, (const CODE *)x + n * image_in, residual == NULL ? NULL : (const CODE *)residual + n * image_out,
                       (CODE *)y + n * image_out, scratch, &rows, row % conv->oh, &columns);
    }
}

static void NAME(conv_transpose)(const struct anynpu_conv *conv, const void *x, const void *residual, void *y, void *scratch,
                                 size_t first_row, size_t last_row)
{
    size_t image_in = conv->h * conv->w * conv->cin, image_out = conv->oh * conv->ow * conv->cout;
    for (size_t row = first_row; row < last_row; row++) {
        size_t n = row / conv->oh, phase = row % conv->oh % conv->sh;
        struct axis rows = transposed_axis(conv->kh, conv->sh, conv->top, conv->dh, conv->oh, phase);
        for (size_t along = 0; along < conv->sw && along < conv->ow; along++) {
            struct axis columns = transposed_axis(conv->kw, conv->sw, conv->left, conv->dw, conv->ow, along);
            NAME(conv_row)(conv, (const CODE *)x + n * image_in, residual == NULL ? NULL : (const CODE *)residual + n * image_out,
                           (CODE *)y + n * image_out, scratch, &rows, row % conv->oh / conv->sh, &columns);
        }
    }
}

static void NAME(matmul)(const struct anynpu_matmul *matmul, const void *a, const void *b, void *y, void *scratch)
{
    size_t k = matmul->k, n = matmul->n, row = whole(k, ROW), padded = whole(n, ANYNPU_CHANNEL_PADDING);
    SUM *sums = scratch;
    OPERAND *left = (OPERAND *)(sums + PIXELS * padded), *right = left + PIXELS * row;
    memset(left, 0, (PIXELS + CHANNELS) * row * sizeof *left);
    for (size_t batch = 0; batch < matmul->batch; batch++) {
        const CODE *a_codes = (const CODE *)a + matmul->a_offsets[batch], *b_codes = (const CODE *)b + matmul->b_offsets[batch];
        CODE *target = (CODE *)y + batch * matmul->m * n;
        for (size_t begin = 0; begin < matmul->m; begin += PIXELS) {
            size_t count = matmul->m - begin < PIXELS ? matmul->m - begin : PIXELS;
            for (size_t p = 0; p < count; p++)
                for (size_t i = 0; i < k; i++)
                    left[p * row + i] = (OPERAND)(a_codes[(begin + p) * k + i] - matmul->a_zero[i]);
            for (size_t column = 0; column < n; column += CHANNELS) {
                size_t some = n - column < CHANNELS ? n - column : CHANNELS;
                for (size_t c = 0; c < some; c++)
                    for (size_t i = 0; i < k; i++)
                        right[c * row + i] = (OPERAND)(matmul->transpose_b
                                                           ? b_codes[(column + c) * k + i] - matmul->b_zero[i]
                                                           : b_codes[i * n + column + c] - matmul->b_zero[column + c]);
                for (size_t p = 0; p < count; p += 2) {
                    SUM block[2 * CHANNELS];
                    NAME(multiply)(left + p * row, right, row, block, CHANNELS);
                    memcpy(sums + p * padded + column, block, some * sizeof *sums);
                    memcpy(sums + (p + 1) * padded + column, block + CHANNELS, some * sizeof *sums);
                }
            }
            for (size_t p = 0; p < count; p++)
                NAME(finish_pixel)(&matmul->epilogue, sums + p * padded, NULL, NULL, NULL, target + (begin + p) * n, n);
        }
    }
}

#undef CODE
#undef OPERAND
#undef SUM
#undef NAME
#undef STORE
#undef DIFFERENCES
