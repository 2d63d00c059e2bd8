/* libawnn: a network in eight calls. The vendor ships it as source, so that there is no binary interface but this one.
 *
 * Keep to what the common parser of headers understands: one declaration a statement.
 */
#ifndef ANYNPU_AWNN_H
#define ANYNPU_AWNN_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Awnn_Context Awnn_Context_t;

void awnn_init(unsigned int mem_size);
void awnn_uninit(void);
Awnn_Context_t *awnn_create(const char *nbg);
void awnn_destroy(Awnn_Context_t *context);
void awnn_set_input_buffers(Awnn_Context_t *context, void **input_buffers);
float **awnn_get_output_buffers(Awnn_Context_t *context);
void *awnn_get_output_buffer(Awnn_Context_t *context, int i);
void awnn_run(Awnn_Context_t *context);
void awnn_dump_io(Awnn_Context_t *context, const char *path);

#ifdef __cplusplus
}
#endif

#endif
