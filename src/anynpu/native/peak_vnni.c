/* The multiply-accumulates that AVX512-VNNI has at the most: nothing but vpdpbusd, in chains that do not wait for each other. The
 * registers are named here, so that no compiler keeps them in memory; what they hold does not matter. */
#include "kernels.h"

#define CHAIN(n) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #n "\n\t"

uint64_t anynpu_peak_vnni(uint64_t rounds)
{
    enum { CHAINS = 12, PRODUCTS = 64 };
    for (uint64_t round = 0; round < rounds; round++)
        __asm__ volatile(CHAIN(0) CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7) CHAIN(8) CHAIN(9) CHAIN(10) CHAIN(11)
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
    __asm__ volatile("vzeroupper"); /* the compiler does not know of the upper halves */
    return rounds * CHAINS * PRODUCTS;
}
