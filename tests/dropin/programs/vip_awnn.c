/* libawnn: vip_awnn MODEL DUMP BYTES prints the checksum of each output, as floats and as the network wrote it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "awnn_lib.h"

static uint32_t checksum(const void *data, size_t size)
{
    uint32_t total = 17;
    for (size_t i = 0; i < size; i++)
        total = total * 31 + ((const uint8_t *)data)[i];
    return total;
}

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    size_t size = (size_t)atol(arguments[3]);
    uint8_t *input = malloc(size);
    uint32_t state = 1;
    for (size_t i = 0; i < size; i++) {
        state = state * 1664525u + 1013904223u;
        input[i] = (uint8_t)(state >> 24);
    }
    awnn_init();
    if (awnn_create("missing.nb") != NULL)
        return 3;
    Awnn_Context_t *context = awnn_create(arguments[1]);
    if (context == NULL)
        return 4;
    float **outputs = awnn_get_output_buffers(context);
    void *inputs[] = {input};
    awnn_set_input_buffers(context, inputs);
    for (int run = 0; run < 3; run++)
        awnn_run(context);
    for (int i = 4; i < count; i++) {
        size_t elements = (size_t)atol(arguments[i]);
        printf("floats %08x\n", checksum(outputs[i - 4], elements * sizeof(float)));
        printf("first %02x\n", *(uint8_t *)awnn_get_output_buffer(context, i - 4));
    }
    if (awnn_get_output_buffer(context, count - 4) != NULL || awnn_get_output_buffer(context, -1) != NULL)
        return 5;
    awnn_dump_io(context, arguments[2]);
    awnn_destroy(context);
    awnn_destroy(NULL);
    context = awnn_create(arguments[1]); /* a second life in one process */
    awnn_run(context);
    awnn_destroy(context);
    awnn_uninit();
    free(input);
    return 0;
}
