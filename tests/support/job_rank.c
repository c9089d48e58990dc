#include "tests/support/job_rank.h"

#include <math.h>

#include "base/bug.h"
#include "tests/support/must.h"

/* --- meshes ------------------------------------------------------------------- */

const ml_mesh_case ml_mesh_few[ML_MESH_FEW] = {
    { 1, { 0 } },
    { 2, { 0 } },
    { 5, { 0 } },
    { 8, { 0 } },
    { 2, { .tp = 2 } },
    { 6, { .tp = 3 } },
    { 2, { .cp = 2 } },
    { 4, { .cp = 4 } },
    { 6, { .cp = 3 } },
    { 2, { .pp = 2 } },
    { 8, { .pp = 8 } },
    { 6, { .pp = 3 } },
    { 2, { .ep = 2 } },
    { 6, { .ep = 3 } },
    { 4, { .tp = 2, .cp = 2 } },
    { 8, { .tp = 2, .pp = 2 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2 } },
    { 4, { .tp = 2, .ep = 4 } },
    { 8, { .cp = 2, .pp = 2, .ep = 4 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2, .ep = 2 } },
};

const ml_mesh_case ml_mesh_etp[ML_MESH_ETP] = {
    { 2, { .etp = 2 } },
    { 3, { .etp = 3 } },
    { 4, { .ep = 2, .etp = 2 } },
    { 8, { .ep = 2, .etp = 2 } },
    { 8, { .tp = 2, .cp = 2, .ep = 2, .etp = 4 } },
    { 8, { .tp = 2, .pp = 2, .etp = 2 } },
};

void ml_mesh_cases(ml_mesh_case out[ML_MESH_CASES]) {
    int32_t n = 0;

    for (int32_t world = 1; world <= 8; world++)
        for (int32_t k = 0; k < world * world * world * world; k++) {
            ml_mesh_opts o = { .tp = 1 + k % world,
                               .cp = 1 + k / world % world,
                               .pp = 1 + k / world / world % world,
                               .ep = 1 + k / world / world / world };
            if (world % (o.tp * o.cp * o.pp) || world / o.pp % o.ep)
                continue;
            ML_BUG_IF(n == ML_MESH_CASES);
            out[n++] = (ml_mesh_case){ world, o };
        }
    ML_BUG_IF(n != ML_MESH_CASES);
}

/* --- a rank ------------------------------------------------------------------- */

void ml_job_rank_open(ml_job_rank *p, const ml_job_rank_opts *o, ml_comm *c) {
    ml_train_fixture_opts f = { .dir = o->dir,
                                .dtype = o->dtype,
                                .critic = o->critic,
                                .n_thread = o->n_thread,
                                .lora = o->lora,
                                .dropout = o->dropout,
                                .mtp = o->mtp,
                                .head = o->head,
                                .trainer = o->trainer };

    *p = (ml_job_rank){ .dtype = o->dtype };
    ml_arena_init(&p->arena, "a rank");
    if (c) {
        MUST(ml_mesh_open(&p->mesh, c, NULL, o->sizes, &err));
        f.trainer.mesh = &p->mesh;
        f.stages = o->stages;
        f.stages.n_stage = f.stages.n_stage ? f.stages.n_stage : o->sizes.pp;
    }
    ml_train_fixture_open(&p->t, &f);
}

void ml_job_rank_close(ml_job_rank *p) {
    ml_weights_close(&p->whole);
    ml_train_fixture_close(&p->t);
    ml_mesh_close(&p->mesh);
    ml_arena_release(&p->arena);
}

const ml_weights *ml_job_rank_whole(ml_job_rank *p, const ml_weights *w) {
    ml_optimizer *o = ml_trainer_optimizer(p->t.trainer);
    bool grads = w == ml_trainer_grads(p->t.trainer);

    if (!w->range)
        return w;
    ml_weights_close(&p->whole);
    if (p->t.lora.n_site)
        MUST(ml_weights_zeros(&p->whole, &p->t.lora.spec, &p->t.be, &p->arena, &err));
    else
        MUST(grads ? ml_weights_zeros(&p->whole, &p->t.spec, &p->t.be, &p->arena, &err)
                   : ml_weights_load(&p->whole, &p->t.spec, p->t.checkpoint, p->dtype,
                                     &p->t.be, &p->arena, &err));
    MUST(ml_ranks_gather_set(&o->ranks, &o->map, &p->whole, w, &err));
    return &p->whole;
}

ml_bins ml_job_rank_bins(ml_job_rank *p, const ml_train_sample *s, int32_t n) {
    ml_trainer *t = p->t.trainer;
    ml_schedule plan;

    MUST(ml_trainer_schedule(&plan, t, &p->arena, s, n, &err));
    CHECK(plan.n_step == 1 && plan.n_rank == ml_trainer_data_size(t));
    return plan.step[0].rank[ml_trainer_data_place(t)];
}

double ml_grads_apart(const float *x, const float *one, size_t n) {
    double most = 0, apart = 0;

    for (size_t k = 0; k < n; k++) {
        double d = fabs((double)x[k] - (double)one[k]);
        most = fmax(most, fabs((double)one[k]));
        apart = d <= apart ? apart : d; /* also NaN */
    }
    return apart == 0 ? 0 : apart / most;
}

double ml_job_rank_apart(const ml_weights *g, const float *one, int32_t *param) {
    double worst = 0;

    for (int32_t i = 0; i < g->n; i++) {
        const float *x = g->t[i].data;
        double apart = ml_grads_apart(x, one + (x - (const float *)g->buf.ptr),
                                      ml_tensor_bytes(&g->t[i]) / sizeof *x);
        if (!(apart <= worst)) {
            worst = apart;
            *param = i;
        }
    }
    return worst;
}
