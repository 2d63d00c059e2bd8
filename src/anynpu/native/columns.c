/* What a convolution sees at some positions of its output, and the rounding of its weights one column after the other: the inner loops of
 * the compiler's weight reconstruction. */
#include "anynpu_native.h"

/* Where the taps of one window lie in the plane of a channel; -1 in the padding. */
static void find_taps(const struct anynpu_window *window, int64_t place, int64_t *taps)
{
    const int64_t row = place / window->out_width * window->strides[0] - window->pads[0];
    const int64_t column = place % window->out_width * window->strides[1] - window->pads[1];
    for (int32_t down = 0; down < window->kernel[0]; down++)
        for (int32_t across = 0; across < window->kernel[1]; across++) {
            const int64_t y = row + (int64_t)down * window->dilations[0], x = column + (int64_t)across * window->dilations[1];
            const int inside = y >= 0 && y < window->height && x >= 0 && x < window->width;
            *taps++ = inside ? y * window->width + x : -1;
        }
}

void anynpu_columns_f32(const struct anynpu_window *window, const float *values, const int64_t *positions, size_t count, int64_t *taps,
                        float *columns)
{
    const size_t plane = (size_t)window->height * window->width, kernel = (size_t)window->kernel[0] * window->kernel[1];
    const int64_t places = (int64_t)window->out_height * window->out_width;
    for (size_t i = 0; i < count; i++) {
        const float *source = values + (size_t)(positions[i] / places) * window->channels * plane;
        find_taps(window, positions[i] % places, taps);
        for (int32_t channel = 0; channel < window->channels; channel++, source += plane)
            for (size_t tap = 0; tap < kernel; tap++)
                *columns++ = taps[tap] < 0 ? 0.0f : source[taps[tap]];
    }
}

void anynpu_channel_columns_f32(const struct anynpu_window *window, const float *values, const int64_t *positions, size_t count,
                                int64_t *taps, size_t stride, float *columns)
{
    const size_t plane = (size_t)window->height * window->width, kernel = (size_t)window->kernel[0] * window->kernel[1];
    const int64_t places = (int64_t)window->out_height * window->out_width;
    int64_t *scratch = taps + kernel * count;
    for (size_t i = 0; i < count; i++) {
        const int64_t image = positions[i] / places * window->channels * (int64_t)plane;
        find_taps(window, positions[i] % places, scratch);
        for (size_t tap = 0; tap < kernel; tap++)
            taps[tap * count + i] = scratch[tap] < 0 ? -1 : image + scratch[tap];
    }
    for (int32_t channel = 0; channel < window->channels; channel++, values += plane)
        for (size_t tap = 0; tap < kernel; tap++, columns += stride) {
            const int64_t *places_of_tap = taps + tap * count;
            for (size_t i = 0; i < count; i++)
                columns[i] = places_of_tap[i] < 0 ? 0.0f : values[places_of_tap[i]];
        }
}

/* To the nearest integer, ties to even, in a way that compilers make vectors of; beyond 2^51 quantized values are clamped anyway. */
static double nearest(double value)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    return (value + magic) - magic;
}

int anynpu_round_columns_f64(size_t columns, size_t outputs, const double *energy, size_t stride, const double *size,
                             const double *lowest, const double *highest, double *gradient, double *chosen, double *differences)
{
    int changed = 0;
    for (size_t column = 0; column < columns; column++) {
        const double *row = energy + column * stride, diagonal = row[column];
        double *mine = chosen + column * outputs, *moved = differences + column * outputs;
        const double *wanted = gradient + column * outputs;
        int moves = 0;
        for (size_t i = 0; i < outputs; i++) {
            double ideal = nearest((wanted[i] / diagonal + mine[i]) / size[i]) * size[i];
            ideal = ideal < lowest[i] ? lowest[i] : ideal;
            ideal = ideal > highest[i] ? highest[i] : ideal;
            moved[i] = mine[i] - ideal;
            moves |= moved[i] != 0.0;
            mine[i] = ideal;
        }
        if (!moves)
            continue;
        changed = 1;
        for (size_t other = column + 1; other < columns; other++) {
            double *its = gradient + other * outputs;
            for (size_t i = 0; i < outputs; i++)
                its[i] += row[other] * moved[i];
        }
    }
    return changed;
}
