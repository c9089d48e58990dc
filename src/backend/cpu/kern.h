/* kern.h - the kernels of one level: typed function pointers, filled at compile time.
 *
 * Each topic has <topic>_kern.h (signatures and their meaning), <topic>.inc (the single
 * implementation, written with the v16 primitives of v16_c.h) and <topic>.c (splits work
 * among threads, calls kernels).  kern_body.inc includes the implementations; kern_c.c,
 * x86/kern_avx2.c, x86/kern_avx512.c and arm/kern_neon.c compile it once per level. */
#ifndef ML_BACKEND_CPU_KERN_H
#define ML_BACKEND_CPU_KERN_H

#include "backend/cpu/attn_kern.h"
#include "backend/cpu/conv_kern.h"
#include "backend/cpu/gemm_kern.h"
#include "backend/cpu/lmhead_kern.h"
#include "backend/cpu/linear_rnn_kern.h"
#include "backend/cpu/optim_kern.h"
#include "backend/cpu/row_kern.h"
#include "backend/cpu/draw_kern.h"

typedef struct ml_cpu_kern {
    const char *level;
    const ml_gemm_kern *gemm;
    const ml_row_kern *row;
    const ml_attn_kern *attn;
    const ml_conv_kern *conv;
    const ml_linear_rnn_kern *linear_rnn;
    const ml_lmhead_kern *lmhead;
    const ml_sample_kern *sample;
    const ml_optim_kern *optim;
} ml_cpu_kern;

extern const ml_cpu_kern ml_cpu_kern_c, ml_cpu_kern_avx2, ml_cpu_kern_avx512,
    ml_cpu_kern_neon;

#endif
