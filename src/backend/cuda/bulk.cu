/* bulk.cu - descriptions of matrices for tensor copies (TMA). */
#include "backend/cuda/bulk.cuh"

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, without linking against the driver. */
static encode_fn *find_encode(void) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *fn = NULL;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_fn *)fn;
}

static CUtensorMapDataType type_of(const ml_tensor_box *b) {
    return b->word == 8   ? CU_TENSOR_MAP_DATA_TYPE_INT64
           : b->word == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

static encode_fn *encode_function(void) {
    static encode_fn *const found = find_encode();
    return found;
}

cudaError_t ml_tensor_map(CUtensorMap *map, const ml_tensor_box *b) {
    encode_fn *encode = encode_function();
    cuuint64_t dims[3] = { (cuuint64_t)b->cols, (cuuint64_t)b->rows, (cuuint64_t)b->count };
    cuuint64_t size = b->word ? (cuuint64_t)b->word : sizeof(bf16);
    cuuint64_t strides[2] = { (cuuint64_t)b->row_stride * size,
                              (cuuint64_t)b->stride * size };
    cuuint32_t box[3] = { (cuuint32_t)b->box_cols, (cuuint32_t)b->box_rows,
                          b->box_count ? (cuuint32_t)b->box_count : 1 };
    cuuint32_t each[3] = { 1, 1, 1 };

    if (!encode)
        return cudaErrorNotSupported;
    if (encode(map, type_of(b), 3, (void *)b->at, dims, strides, box, each,
               CU_TENSOR_MAP_INTERLEAVE_NONE,
               b->word && !b->swizzled ? CU_TENSOR_MAP_SWIZZLE_NONE
                                       : CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t ml_tensor_map_panels(CUtensorMap *map, const ml_panel_box *b) {
    encode_fn *encode = encode_function();
    cuuint64_t ld = (cuuint64_t)b->row_stride;
    cuuint64_t dims[4] = { (cuuint64_t)b->cols, 8, 2, (cuuint64_t)b->panels };
    cuuint64_t strides[3] = { 2 * ld, ld, 16 * ld };
    cuuint32_t box[4] = { 128, 8, 2, (cuuint32_t)b->box_panels };
    cuuint32_t each[4] = { 1, 1, 1, 1 };

    if (!encode)
        return cudaErrorNotSupported;
    if (encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, (void *)b->at, dims, strides, box,
               each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}
