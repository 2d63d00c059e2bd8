/* The multiply-accumulates that NEON has at the most: nothing but sdot (with ANYNPU_DOTPROD) or smlal, in chains that do not wait for
 * each other. Compiled twice, as conv_neon.c is. The registers are named here, so that no compiler keeps them in memory; what they hold
 * does not matter. */
#include "kernels.h"

#ifdef ANYNPU_DOTPROD
#define PEAK anynpu_peak_neon_dotprod
#define CHAIN(n) "sdot v" #n ".4s, v28.16b, v29.16b\n\t"
enum { PRODUCTS = 16 };
#else
#define PEAK anynpu_peak_neon
#define CHAIN(n) "smlal v" #n ".4s, v28.4h, v29.4h\n\t"
enum { PRODUCTS = 4 };
#endif

uint64_t PEAK(uint64_t rounds)
{
    enum { CHAINS = 12 };
    for (uint64_t round = 0; round < rounds; round++)
        __asm__ volatile(CHAIN(16) CHAIN(17) CHAIN(18) CHAIN(19) CHAIN(20) CHAIN(21) CHAIN(22) CHAIN(23) CHAIN(24) CHAIN(25) CHAIN(26)
                             CHAIN(27)
                         :
                         :
                         : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27");
    return rounds * CHAINS * PRODUCTS;
}
