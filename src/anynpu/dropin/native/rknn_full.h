/* librknnrt: the calls that are not passed on as they come. */
/* own: rknn_B_normal_layout_to_native_layout */

/* Two forms of this call are in use: with a pointer to the product's description (SDK 2.1 and later), and with the block sizes and the type
 * in its place (2.0). No pointer is as small as a block. */
ANYNPU_EXPORT int anynpu_any_b_layout(void *input, void *output, int k, int n, uintptr_t fifth, int sub_k, int type)
    __asm__("rknn_B_normal_layout_to_native_layout");

int anynpu_any_b_layout(void *input, void *output, int k, int n, uintptr_t fifth, int sub_k, int type)
{
    rknn_matmul_info info = {.K = k, .N = n, .B_layout = RKNN_MM_LAYOUT_NATIVE};
    if (fifth == 0 || fifth > 4096)
        return call_rknn_B_normal_layout_to_native_layout(input, output, k, n, (rknn_matmul_info *)fifth);
    (void)sub_k;
    info.type = (rknn_matmul_type)type;
    return call_rknn_B_normal_layout_to_native_layout(input, output, k, n, &info);
}
