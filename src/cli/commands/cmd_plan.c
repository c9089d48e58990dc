/* miles plan: memory and speed of miles train on a cluster, without running anything. */
#include <stdio.h>

#include "base/log.h"
#include "cli/cli.h"
#include "run/job_report.h"

static ml_status plan_one(ml_text *out, ml_job_plan *p, bool json, ml_err *err) {
    ml_job_cost cost;
    ml_status st = ml_job_cost_of(&cost, p->planner, &p->layout, err);

    if (st != ML_OK)
        return st;
    if (json)
        ml_job_json(out, p, &cost, 1, 0);
    else
        ml_job_text(out, p, &cost);
    return ML_OK;
}

static ml_status plan_all(ml_text *out, ml_job_plan *p, const ml_config *c, ml_err *err) {
    ml_job_cost *cost;
    int32_t n, n_tried;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "layouts");
    st = ml_job_search(&cost, &n, &n_tried, &a, p->planner, (int32_t)c->plan.n_result, err);
    if (st == ML_OK && n == 0)
        st = ml_fail(err, ML_EUSAGE,
                     "none of %d layouts of %d GPUs fits: use more --nodes, a smaller "
                     "--max-tokens-per-gpu, or --optimizer-cpu-offload",
                     (int)n_tried, (int)(p->req.n_node * p->req.gpus_per_node));
    else if (st == ML_OK && c->plan.json)
        ml_job_json(out, p, cost, n, n_tried);
    else if (st == ML_OK)
        ml_job_table(out, p, cost, n);
    ml_arena_release(&a);
    return st;
}

ml_status ml_cmd_plan(const ml_config *c, ml_err *err) {
    ml_run_opts opts = c->run;
    ml_loop_extensions extensions = { 0 };
    ml_job_plan plan = { 0 };
    ml_text out = { 0 }, warning = { 0 };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "options");
    st = ml_run_opts_train(&opts, &a, &extensions, err);
    if (st == ML_OK)
        st = ml_job_plan_open(&plan, &opts, c->plan.kind, c->plan.sample_tokens, err);
    if (st == ML_OK)
        st = c->plan.search ? plan_all(&out, &plan, c, err)
                            : plan_one(&out, &plan, c->plan.json, err);
    if (st == ML_OK) {
        ml_job_warn(&warning, &plan);
        if (warning.len)
            ml_log(ML_LOG_WARN, "%s", warning.ptr);
        fputs(out.ptr, stdout);
    }
    ml_text_release(&warning);
    ml_text_release(&out);
    ml_job_plan_close(&plan);
    ml_arena_release(&a);
    return st;
}
