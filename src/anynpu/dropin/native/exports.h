/* What the generated file of a library is written with. */
#ifndef ANYNPU_EXPORTS_H
#define ANYNPU_EXPORTS_H

#include <string.h>

#include "shim.h"

#define ANYNPU_EXPORT __attribute__((visibility("default")))

/* Handles of four bytes, at addresses that may not be aligned for eight. */
static inline void anynpu_write_handle(void *at, uint64_t handle)
{
    uint32_t narrow = (uint32_t)handle;
    memcpy(at, &narrow, sizeof narrow);
}

static inline uint64_t anynpu_read_handle(const void *at)
{
    uint32_t narrow;
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

#endif
