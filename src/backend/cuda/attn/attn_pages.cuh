/* attn_pages.cuh - tensor copies (TMA) of KV pages. */
#ifndef ML_BACKEND_CUDA_ATTN_ATTN_PAGES_CUH
#define ML_BACKEND_CUDA_ATTN_ATTN_PAGES_CUH

#include "backend/cuda/attn/attn.cuh"
#include "backend/cuda/bulk.cuh"

/* Tensor maps of the pages: their rows are the slots of all heads. */
struct attn_page_maps {
    CUtensorMap keys, values;
};

/* Slots of pages are rows, as many as an index can have. */
static inline cudaError_t attn_map_pages(CUtensorMap *map, const bf16 *pages, int width) {
    ml_tensor_box b = {};

    b.at = pages;
    b.cols = b.row_stride = width;
    b.rows = INT32_MAX;
    b.count = 1;
    b.stride = b.rows * width;
    b.box_cols = 64;
    b.box_rows = ML_PAGE;
    return ml_tensor_map(map, &b);
}

/* The same of heads of whole panels, of which a copy brings all of a page, each panel behind the last. */
static inline cudaError_t attn_map_whole_pages(CUtensorMap *map, const bf16 *pages,
                                               int width) {
    ml_tensor_box b = {};

    b.at = pages;
    b.cols = b.stride = b.box_cols = 64;
    b.rows = INT32_MAX;
    b.row_stride = width;
    b.count = b.box_count = width / 64;
    b.box_rows = ML_PAGE;
    return ml_tensor_map(map, &b);
}

#endif
