/* Bytes that grow, and their SHA-256. */
#ifndef ANYNPU_ORT_BUFFER_H
#define ANYNPU_ORT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* failed: memory was short; what is put afterwards is ignored */
typedef struct {
    uint8_t *data;
    size_t size, room;
    bool failed;
} Buffer;

void put(Buffer *buffer, const void *data, size_t size);
void put_text(Buffer *buffer, const char *text);
void put_format(Buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void release(Buffer *buffer);

enum { HASH_TEXT = 65 };
void sha256(const void *data, size_t size, char text[HASH_TEXT]);

#endif
