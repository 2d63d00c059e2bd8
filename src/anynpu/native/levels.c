/* Which instruction set runs: found out once, overridable for tests and comparisons. */
#include <string.h>

#include "levels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define FOR_EACH_LEVEL(use) use(avx2) use(generic)
#else
#define FOR_EACH_LEVEL(use) use(generic)
#endif

#define DECLARE(level)                                                                                                         \
    extern const struct anynpu_element_kernels anynpu_elements_##level;                                                        \
    extern const struct anynpu_transpose_kernels anynpu_transpose_##level;                                                     \
    extern const struct anynpu_statistics_kernels anynpu_statistics_##level;
FOR_EACH_LEVEL(DECLARE)

#define FILL(level) {#level, &anynpu_elements_##level, &anynpu_transpose_##level, &anynpu_statistics_##level},
static const struct anynpu_kernel_set LEVELS[] = {FOR_EACH_LEVEL(FILL)};
#define LEVEL_COUNT ((int)(sizeof LEVELS / sizeof *LEVELS))

static const struct anynpu_kernel_set *chosen;

static int processor_has(const struct anynpu_kernel_set *level)
{
#if defined(__x86_64__)
    if (strcmp(level->name, "avx2") == 0) {
        unsigned eax, ebx, ecx = 0, edx;
        return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    }
#endif
    (void)level;
    return 1;
}

const struct anynpu_kernel_set *anynpu_kernels(void)
{
    const struct anynpu_kernel_set *set = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (set == NULL) {
        set = LEVELS;
        while (!processor_has(set))
            set++;
        __atomic_store_n(&chosen, set, __ATOMIC_RELAXED);
    }
    return set;
}

int anynpu_level_count(void)
{
    return LEVEL_COUNT;
}

const char *anynpu_level_name(int level)
{
    return level >= 0 && level < LEVEL_COUNT ? LEVELS[level].name : NULL;
}

const char *anynpu_level(void)
{
    return anynpu_kernels()->name;
}

int anynpu_use_level(const char *name)
{
    for (int level = 0; level < LEVEL_COUNT; level++)
        if (strcmp(LEVELS[level].name, name) == 0 && processor_has(&LEVELS[level])) {
            __atomic_store_n(&chosen, &LEVELS[level], __ATOMIC_RELAXED);
            return 1;
        }
    return 0;
}

void anynpu_minmax_f32(const float *values, size_t count, float range[2])
{
    anynpu_kernels()->statistics->minmax_f32(values, count, range);
}

void anynpu_minmax_channels_f32(const float *values, size_t n, size_t c, size_t hw, float *low, float *high)
{
    const struct anynpu_statistics_kernels *kernels = anynpu_kernels()->statistics;
    for (size_t batch = 0; batch < n; batch++)
        for (size_t channel = 0; channel < c; channel++) {
            float range[2];
            kernels->minmax_f32(values + (batch * c + channel) * hw, hw, range);
            if (batch == 0 || range[0] < low[channel])
                low[channel] = range[0];
            if (batch == 0 || range[1] > high[channel])
                high[channel] = range[1];
        }
}

void anynpu_histogram_f32(const float *values, size_t count, float low, float inverse_step, uint32_t bins, uint64_t *counts)
{
    anynpu_kernels()->statistics->histogram_f32(values, count, low, inverse_step, bins, counts);
}
