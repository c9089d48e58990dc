/* job_rank.h - a rank of a training job on a mesh, whose ranks are threads of the test; and
 * the meshes that tests run. */
#ifndef ML_TESTS_SUPPORT_JOB_RANK_H
#define ML_TESTS_SUPPORT_JOB_RANK_H

#include "model/stage.h"
#include "tests/support/ranks.h"
#include "tests/support/train_fixture.h"

/* --- meshes ------------------------------------------------------------------- */

typedef struct ml_mesh_case {
    int32_t n_rank;
    ml_mesh_opts sizes;
} ml_mesh_case;

enum { ML_MESH_CASES = 168, ML_MESH_FEW = 20 };

/* All meshes of tp, cp, dp and pp of up to 8 ranks, and each with every expert parallel
 * size that its stages have. */
void ml_mesh_cases(ml_mesh_case out[ML_MESH_CASES]);
/* Those of them that the short tier runs; they have every direction, alone and with
 * others. */
extern const ml_mesh_case ml_mesh_few[ML_MESH_FEW];
/* Meshes whose ranks divide the weights of experts. */
enum { ML_MESH_ETP = 6 };
extern const ml_mesh_case ml_mesh_etp[ML_MESH_ETP];

/* --- a rank ------------------------------------------------------------------- */

typedef struct ml_job_rank_opts {
    const char *dir; /* of the model */
    ml_weight_dtype dtype;
    ml_mesh_opts sizes;
    ml_stage_opts stages; /* n_stage 0: as many as pp */
    bool critic;
    int n_thread;             /* 0: 1 */
    const ml_lora_opts *lora; /* as in ml_train_fixture_opts */
    double dropout;
    bool mtp;
    const char *head;
    ml_trainer_opts trainer; /* without the mesh */
} ml_job_rank_opts;

typedef struct ml_job_rank {
    ml_train_fixture t;
    ml_mesh mesh;
    ml_weights whole;
    ml_weight_dtype dtype;
    ml_arena arena;
} ml_job_rank;

/* c NULL: a trainer without a mesh.  Failures end the test. */
void ml_job_rank_open(ml_job_rank *p, const ml_job_rank_opts *o, ml_comm *c);
void ml_job_rank_close(ml_job_rank *p);

/* The weights or gradients of the trainer, with the parts of all ranks; valid until the
 * next call.  Collective. */
const ml_weights *ml_job_rank_whole(ml_job_rank *p, const ml_weights *w);

/* The micro-batches of this rank in one step of these samples. */
ml_bins ml_job_rank_bins(ml_job_rank *p, const ml_train_sample *s, int32_t n);

/* How far the gradients of ranks may be from those of one rank, in units of the largest
 * gradient of the tensor: docs/NUMERICS.md says what they differ by. */
#define ML_GRADS_BOUND 1e-6

/* The largest difference of n gradients from those of one rank, in these units. */
double ml_grads_apart(const float *x, const float *one, size_t n);
/* Of all tensors of two sets of gradients, of which `one` is laid out like g; *param receives
 * the parameter. */
double ml_job_rank_apart(const ml_weights *g, const float *one, int32_t *param);

#endif
