/* Which instruction set runs: found out once, overridable for tests and comparisons. */
#include <string.h>

#include "levels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define FOR_EACH_PLAIN_LEVEL(use) use(avx2) use(generic)
#else
#define FOR_EACH_PLAIN_LEVEL(use) use(generic)
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define DECLARE(level)                                                                                                         \
    extern const struct anynpu_element_kernels anynpu_elements_##level;                                                        \
    extern const struct anynpu_transpose_kernels anynpu_transpose_##level;                                                     \
    extern const struct anynpu_statistics_kernels anynpu_statistics_##level;                                                   \
    extern const struct anynpu_product_operators anynpu_products_##level;                                                      \
    extern const struct anynpu_elementwise_operators anynpu_elementwise_##level;                                               \
    extern const struct anynpu_window_operators anynpu_windows_##level;                                                        \
    extern const struct anynpu_layout_operators anynpu_layout_##level;                                                         \
    extern const struct anynpu_matrix_kernels anynpu_plain_matrices_##level;                                                   \
    extern const struct anynpu_float_operators anynpu_floats_##level;
FOR_EACH_PLAIN_LEVEL(DECLARE)

/* The plain C that was compiled for an instruction set; that of floats may be for another one. */
#define PLAIN(level, float_level) PLAIN_OF(level, float_level)
#define PLAIN_OF(level, float_level)                                                                                           \
    .elements = &anynpu_elements_##level, .transpose = &anynpu_transpose_##level, .statistics = &anynpu_statistics_##level,     \
    .operators = {&anynpu_products_##level, &anynpu_elementwise_##level, &anynpu_windows_##level, &anynpu_layout_##level,      \
                  &anynpu_floats_##float_level},                                                                                  \
    .plain_matrices = &anynpu_plain_matrices_##level

/* Kernels that were written for an instruction set; a build may leave them out. */
#if defined(ANYNPU_FAST_KERNELS)
#if defined(__x86_64__)
extern const struct anynpu_float_operators anynpu_floats_avx512;
#endif
#define FLOATS_VNNI avx512
#define FAST(depthwise, conv, simple_kernels, matrix_kernels, peak_loop)                                                       \
    .convolutions = {depthwise, conv, NULL}, .simple = &simple_kernels, .matrices = &matrix_kernels, .peak = peak_loop
#else
#define FLOATS_VNNI avx2
#define FAST(depthwise, conv, simple_kernels, matrix_kernels, peak_loop) .simple = NULL, .matrices = NULL, .peak = peak_plain
#endif

/* What the compiler makes of a sum of products without help. */
static uint64_t peak_plain(uint64_t rounds)
{
    enum { PRODUCTS = 1024 };
    int8_t a[PRODUCTS], b[PRODUCTS];
    memset(a, 1, sizeof a);
    memset(b, 1, sizeof b);
    for (uint64_t round = 0; round < rounds; round++) {
        int32_t sum = 0;
        for (size_t i = 0; i < PRODUCTS; i++)
            sum += a[i] * b[i];
        __asm__ volatile("" : : "r"(sum), "r"(a), "r"(b) : "memory"); /* wants the sum, and might change what is added up */
    }
    return rounds * PRODUCTS;
}

/* The best first; the last is always there. */
static const struct anynpu_kernel_set LEVELS[] = {
#if defined(__x86_64__)
    {.name = "avx512vnni",
     PLAIN(avx2, FLOATS_VNNI),
     FAST(anynpu_depthwise_vnni, anynpu_conv_vnni, anynpu_simple_vnni, anynpu_matrices_vnni, anynpu_peak_vnni)},
    {.name = "avx2",
     PLAIN(avx2, avx2),
     FAST(anynpu_depthwise_avx2, anynpu_conv_avx2, anynpu_simple_avx2, anynpu_matrices_avx2, anynpu_peak_avx2)},
#elif defined(__aarch64__)
    {.name = "neon_dotprod",
     PLAIN(generic, generic),
     FAST(anynpu_depthwise_neon, anynpu_conv_neon_dotprod, anynpu_simple_neon, anynpu_matrices_neon_dotprod,
          anynpu_peak_neon_dotprod)},
    {.name = "neon",
     PLAIN(generic, generic),
     FAST(anynpu_depthwise_neon, anynpu_conv_neon, anynpu_simple_neon, anynpu_matrices_neon, anynpu_peak_neon)},
#endif
    {.name = "generic", PLAIN(generic, generic), .peak = peak_plain},
};
#define LEVEL_COUNT ((int)(sizeof LEVELS / sizeof *LEVELS))

static const struct anynpu_kernel_set *chosen;

static int processor_has(const struct anynpu_kernel_set *level)
{
#if defined(__x86_64__)
    if (strcmp(level->name, "generic") != 0) {
        unsigned eax, ebx, ecx = 0, edx;
        if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C) || !(ecx & bit_FMA))
            return 0;
    }
    if (strcmp(level->name, "avx512vnni") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    if (strcmp(level->name, "neon_dotprod") == 0) {
#if defined(__linux__)
        enum { DOT_PRODUCT = 1 << 20 }; /* HWCAP_ASIMDDP */
        return (getauxval(AT_HWCAP) & DOT_PRODUCT) != 0;
#else
        return 0;
#endif
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

/* The answer is kept: in a virtual machine the instruction that asks the processor takes tens of microseconds. */
static int has_level(int level)
{
    enum { UNKNOWN, NO, YES };
    static int known[LEVEL_COUNT];
    int answer = __atomic_load_n(&known[level], __ATOMIC_RELAXED);
    if (answer == UNKNOWN) {
        answer = processor_has(&LEVELS[level]) ? YES : NO;
        __atomic_store_n(&known[level], answer, __ATOMIC_RELAXED);
    }
    return answer == YES;
}

const struct anynpu_kernel_set *anynpu_kernels_at(int level)
{
    return level >= 0 && level < LEVEL_COUNT && has_level(level) ? &LEVELS[level] : NULL;
}

int anynpu_level_count(void)
{
    return LEVEL_COUNT;
}

const char *anynpu_level_name(int level)
{
    return level >= 0 && level < LEVEL_COUNT ? LEVELS[level].name : NULL;
}

int anynpu_has_level(int level)
{
    return anynpu_kernels_at(level) != NULL;
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

uint64_t anynpu_peak(uint64_t rounds)
{
    return anynpu_kernels()->peak(rounds);
}

int anynpu_worst_float(int type, const void *values, size_t count)
{
    return anynpu_kernels()->statistics->worst(type, values, count);
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
