/* The small functions of the headers that name constants. */
#include <stdio.h>

#include "rknn_matmul_api.h"

int main(void)
{
    puts(get_type_string(RKNN_TENSOR_FLOAT32));
    puts(get_type_string(RKNN_TENSOR_FLOAT16));
    puts(get_type_string(RKNN_TENSOR_INT8));
    puts(get_type_string(RKNN_TENSOR_BFLOAT16));
    puts(get_type_string(RKNN_TENSOR_TYPE_MAX));
    puts(get_qnt_type_string(RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC));
    puts(get_qnt_type_string(RKNN_TENSOR_QNT_NONE));
    puts(get_format_string(RKNN_TENSOR_NC1HWC2));
    puts(get_matmul_type_string(RKNN_INT8_MM_INT8_TO_INT32));
    return 0;
}
