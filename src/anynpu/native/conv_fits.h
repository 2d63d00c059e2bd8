/* Which convolutions the fast kernels take, and in which form they end. */
#ifndef ANYNPU_CONV_FITS_H
#define ANYNPU_CONV_FITS_H

#include <stdlib.h>

#include "fixed_forms.h"

/* Whether no accumulator can leave 32 bits, whatever the input. */
static inline int conv_fits_32_bits(const struct anynpu_conv *conv)
{
    const int8_t *weights = conv->weights;
    const int32_t *bias = conv->bias;
    size_t k = conv->kh * conv->kw * (conv->cin / conv->groups);
    for (size_t oc = 0; oc < conv->cout; oc++) {
        int64_t room = INT32_MAX - llabs((int64_t)bias[oc]);
        if ((int64_t)k * 255 * 255 <= room)
            continue;
        int64_t sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += labs((long)weights[oc * k + i] - conv->weight_zero[oc]);
        if (sum * 255 > room)
            return 0;
    }
    return 1;
}

/* Whether the clamp is one of bytes, and the zero point is added to rounded values in 16 bits without harm. */
static inline int conv_fits_16_bits(const struct anynpu_epilogue *epilogue, size_t channels)
{
    const int32_t farthest = 1 << 14;
    for (size_t oc = 0; oc < channels; oc++)
        if (epilogue->zero_point[oc] < -farthest || epilogue->zero_point[oc] > farthest || epilogue->low[oc] < INT8_MIN ||
            epilogue->high[oc] > INT8_MAX || epilogue->low[oc] > epilogue->high[oc])
            return 0;
    return 1;
}

static inline int32_t conv_input_zero(const struct anynpu_conv *conv, size_t channel)
{
    return conv->input_zeros ? conv->input_zeros[channel] : conv->input_zero;
}

/* How far from 0 an accumulator of the channel can be, whatever the input. */
static inline double conv_largest_sum(const struct anynpu_conv *conv, size_t oc)
{
    size_t group_cin = conv->cin / conv->groups, first_input = oc / (conv->cout / conv->groups) * group_cin;
    const int8_t *weights = (const int8_t *)conv->weights + oc * conv->kh * conv->kw * group_cin;
    int64_t largest = ((const int32_t *)conv->bias)[oc], smallest = largest;
    for (size_t c = 0; c < group_cin; c++) {
        int64_t zero = conv_input_zero(conv, first_input + c), positive = 0, negative = 0;
        int64_t above = zero < INT8_MAX ? INT8_MAX - zero : 0, below = zero > INT8_MIN ? INT8_MIN - zero : 0; /* padding is 0 */
        for (size_t tap = 0; tap < conv->kh * conv->kw; tap++) {
            int32_t weight = weights[tap * group_cin + c] - conv->weight_zero[oc];
            positive += weight > 0 ? weight : 0;
            negative += weight < 0 ? weight : 0;
        }
        largest += positive * above + negative * below;
        smallest += positive * below + negative * above;
    }
    return (double)(llabs(largest) > llabs(smallest) ? llabs(largest) : llabs(smallest));
}

/* The form in which all channels are exact, and whether there are sums that have to be clamped for it (fixed_clamped_form). */
static inline enum fixed_form conv_form(const struct anynpu_conv *conv, int *clamps)
{
    *clamps = 0;
    enum fixed_form form = conv->epilogue.fixed != NULL ? FIXED_SINGLE : FIXED_NONE;
    if (conv->epilogue.staircases != NULL)
        return FIXED_DOUBLE;
    for (size_t oc = 0; conv->epilogue.fixed != NULL && oc < conv->cout && form != FIXED_REFUSED; oc++) {
        const double largest = conv_largest_sum(conv, oc);
        enum fixed_form of_channel = fixed_clamped_form(&conv->epilogue, oc, largest);
        *clamps |= fixed_needs_clamp(&conv->epilogue, oc, largest);
        form = of_channel > form ? of_channel : form;
    }
    if (form != FIXED_REFUSED && conv->epilogue.fixed != NULL && conv->epilogue.fixed->curves != NULL && !curves_fit(&conv->epilogue, conv->cout))
        return FIXED_REFUSED;
    return form;
}

/* Groups of one channel are depthwise: they have kernels of their own. */
static inline int conv_fits(const struct anynpu_conv *conv)
{
    size_t group_cin = conv->cin / conv->groups, group_cout = conv->cout / conv->groups;
    int clamps;
    return (conv->groups == 1 || (group_cin > 1 && group_cout > 1)) && conv_fits_32_bits(conv) &&
           (conv->epilogue.fixed != NULL ? conv_form(conv, &clamps) != FIXED_REFUSED : conv_fits_16_bits(&conv->epilogue, conv->cout));
}

#endif
