// Numbers of 16 bits: every one goes to float and back, and floats round as the table of the caller states.
#include <cstdio>
#include <cstring>

#include "Float16.h"

using rknpu2::float16;

int main()
{
    static_assert(sizeof(float16) == 2, "two bytes");
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        const unsigned short half = static_cast<unsigned short>(bits);
        if ((bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0)
            continue;
        float16 value;
        std::memcpy(&value, &half, sizeof value);
        const float16 back = static_cast<float>(value);
        unsigned short again;
        std::memcpy(&again, &back, sizeof again);
        if (again != half) {
            std::printf("%04x %04x\n", half, again);
            return 1;
        }
    }
    const float given[] = {1.0f, 0.1f, 65519.0f, 65520.0f, 6e-8f, 2e-8f, -2.5f, 1.00048828125f, 1.00146484375f};
    for (float number : given) {
        const float16 value = number;
        unsigned short bits;
        std::memcpy(&bits, &value, sizeof bits);
        std::printf("%04x ", bits);
    }
    float16 sum = 1;
    sum += (float16)0.5;
    std::printf("%g\n", (float)sum);
    return 0;
}
