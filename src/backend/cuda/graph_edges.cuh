/* graph_edges.cuh - dependencies of the next kernel of a CUDA graph that is being recorded.
 *
 * A recorded stream is a chain: a kernel begins when the one before it has ended or, launched with
 * PDL, when all blocks of that one have called ml_grid_release.  Kernels of cuBLASLt are neither
 * launched with PDL nor do they call it.  Before and after them these functions change the
 * dependencies.  They do nothing while no graph is recorded, and with a CUDA before 13, whose
 * functions for this have other names. */
#ifndef ML_BACKEND_CUDA_GRAPH_EDGES_CUH
#define ML_BACKEND_CUDA_GRAPH_EDGES_CUH

#include "backend/cuda/common.cuh"

/* The kernel that the next one depends on; NULL: there is not exactly one. */
static inline cudaGraphNode_t ml_graph_last_kernel(ml_cuda_stream *s) {
    cudaGraphNode_t last = NULL;
#if CUDART_VERSION >= 13000
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node;
    const cudaGraphEdgeData *edge;
    cudaGraphNodeType type;
    size_t n = 0;

    if (!s->early ||
        cudaStreamGetCaptureInfo(s->stream, &status, NULL, NULL, &node, &edge, &n) !=
            cudaSuccess ||
        status != cudaStreamCaptureStatusActive || n != 1)
        return NULL;
    last = node[0];
    if (cudaGraphNodeGetType(last, &type) != cudaSuccess || type != cudaGraphNodeTypeKernel)
        last = NULL;
#endif
    return last;
}

/* The next kernel depends on these; with a `port`, on `from` up to there. */
static inline void ml_graph_depend(ml_cuda_stream *s, cudaGraphNode_t from,
                                   unsigned char port, cudaGraphNode_t also) {
#if CUDART_VERSION >= 13000
    cudaGraphNode_t node[] = { from, also };
    cudaGraphEdgeData edge[2] = {};

    edge[0].from_port = port;
    edge[0].type = cudaGraphDependencyTypeProgrammatic;
    ml_cuda_note(s,
                 cudaStreamUpdateCaptureDependencies(s->stream, node, edge, also ? 2 : 1,
                                                     cudaStreamSetCaptureDependencies),
                 "a CUDA graph");
#endif
}

/* After the launch of a kernel: the next one, which does not use what this kernel writes, begins when
 * all blocks of it have called ml_grid_release.  Returns the kernel, which has to end before a later
 * one; NULL: nothing was changed. */
static inline cudaGraphNode_t ml_graph_release_next(ml_cuda_stream *s) {
    cudaGraphNode_t last = ml_graph_last_kernel(s);

    if (last)
        ml_graph_depend(s, last, cudaGraphKernelNodePortProgrammatic, NULL);
    return last;
}

/* Before the launch of a kernel that calls ml_grid_wait, without PDL: it begins when all blocks of the
 * last one have begun, and `also` has ended (NULL: nothing else).  False: nothing was changed. */
static inline bool ml_graph_begin_early(ml_cuda_stream *s, cudaGraphNode_t also) {
    cudaGraphNode_t last = ml_graph_last_kernel(s);

    if (last)
        ml_graph_depend(s, last, cudaGraphKernelNodePortLaunchCompletion, also);
    return last;
}

#endif
