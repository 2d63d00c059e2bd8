/* librknnmrt: handles are four bytes, as on the 32-bit chips that have this library. Clients for other machines keep to that. */
/* own: rknn_init rknn_dup_context */

ANYNPU_EXPORT int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend)
{
    rknn_context wide = 0;
    int result = call_rknn_init(context == NULL ? NULL : &wide, model, size, flag, extend);
    if (context != NULL && result == 0)
        anynpu_write_handle(context, wide);
    return result;
}

ANYNPU_EXPORT int rknn_dup_context(rknn_context *context_in, rknn_context *context_out)
{
    rknn_context from = context_in == NULL ? 0 : anynpu_read_handle(context_in);
    rknn_context to = 0;
    int result = call_rknn_dup_context(context_in == NULL ? NULL : &from, context_out == NULL ? NULL : &to);
    if (context_out != NULL && result == 0)
        anynpu_write_handle(context_out, to);
    return result;
}
