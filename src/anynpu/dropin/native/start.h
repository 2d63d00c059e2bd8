/* What a drop-in library hands to Python when it starts, and what it gets back. */
#ifndef ANYNPU_START_H
#define ANYNPU_START_H

#include <stdint.h>

typedef void (*anynpu_entry)(void);

typedef struct anynpu_start {
  const char *library;
  const char *const *names;
  anynpu_entry *entries;
  uint32_t count;
  uint32_t ready;
  void (*close)(void);
  void (*shutdown)(void);
} anynpu_start;

#endif
