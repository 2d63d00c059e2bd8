/* Bytes that grow, and their SHA-256 (FIPS 180-4). */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"

void put(Buffer *buffer, const void *data, size_t size)
{
    size_t needed;
    if (buffer->failed || size == 0)
        return;
    if (__builtin_add_overflow(buffer->size, size, &needed)) {
        buffer->failed = true;
        return;
    }
    if (needed > buffer->room) {
        size_t room = needed < SIZE_MAX / 2 ? needed * 2 : needed;
        uint8_t *grown = realloc(buffer->data, room);
        if (grown == NULL) {
            buffer->failed = true;
            return;
        }
        buffer->data = grown;
        buffer->room = room;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size = needed;
}

void put_text(Buffer *buffer, const char *text)
{
    put(buffer, text, strlen(text));
}

void put_format(Buffer *buffer, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put_text(buffer, text);
}

void release(Buffer *buffer)
{
    free(buffer->data);
    *buffer = (Buffer){.data = NULL};
}

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t value, int bits)
{
    return value >> bits | value << (32 - bits);
}

static void add_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t words[64], now[8];
    for (int index = 0; index < 16; index++)
        words[index] = (uint32_t)block[4 * index] << 24 | (uint32_t)block[4 * index + 1] << 16 | (uint32_t)block[4 * index + 2] << 8
                       | (uint32_t)block[4 * index + 3];
    for (int index = 16; index < 64; index++) {
        uint32_t early = words[index - 15], late = words[index - 2];
        uint32_t first = rotated(early, 7) ^ rotated(early, 18) ^ early >> 3;
        uint32_t second = rotated(late, 17) ^ rotated(late, 19) ^ late >> 10;
        words[index] = words[index - 16] + first + words[index - 7] + second;
    }
    memcpy(now, state, sizeof now);
    for (int index = 0; index < 64; index++) {
        uint32_t mixed = rotated(now[4], 6) ^ rotated(now[4], 11) ^ rotated(now[4], 25);
        uint32_t chosen = (now[4] & now[5]) ^ (~now[4] & now[6]);
        uint32_t first = now[7] + mixed + chosen + constants[index] + words[index];
        uint32_t turned = rotated(now[0], 2) ^ rotated(now[0], 13) ^ rotated(now[0], 22);
        uint32_t majority = (now[0] & now[1]) ^ (now[0] & now[2]) ^ (now[1] & now[2]);
        memmove(now + 1, now, 7 * sizeof *now);
        now[4] += first;
        now[0] = first + turned + majority;
    }
    for (int index = 0; index < 8; index++)
        state[index] += now[index];
}

void sha256(const void *data, size_t size, char text[HASH_TEXT])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *bytes = data;
    uint8_t last[128] = {0};
    size_t rest = size % 64, blocks = size / 64, padded = rest < 56 ? 64 : 128;
    for (size_t index = 0; index < blocks; index++)
        add_block(state, bytes + 64 * index);
    if (rest > 0)
        memcpy(last, bytes + 64 * blocks, rest);
    last[rest] = 0x80;
    for (int index = 0; index < 8; index++)
        last[padded - 1 - (size_t)index] = (uint8_t)((uint64_t)size * 8 >> 8 * index);
    for (size_t index = 0; index < padded; index += 64)
        add_block(state, last + index);
    for (int index = 0; index < 8; index++)
        snprintf(text + 8 * index, 9, "%08x", (unsigned)state[index]);
}
