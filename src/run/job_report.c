#include "run/job_report.h"

#include <math.h>
#include <string.h>

#include "backend/sizes.h"
#include "base/json_out.h"
#include "plugin/model_family.h"
#include "run/memory_plan.h"

/* --- from options to a request ------------------------------------------------ */

static int64_t sample_tokens_of(const ml_run_opts *o, int64_t given) {
    int64_t n = o->rollout.max_context;

    if (given)
        return given;
    if (!n && o->rollout.max_prompt)
        n = o->rollout.max_prompt + o->rollout.max_response;
    return n ? n : o->trainer.batch.max_tokens;
}

static const char *base_name(const char *path) {
    const char *end = path + strlen(path), *at;

    while (end > path + 1 && end[-1] == '/')
        end--;
    for (at = end; at > path && at[-1] != '/';)
        at--;
    return at;
}

/* An engine beside its weights and KV cache, as one rank. */
static ml_status measure_engine(ml_job_plan *p, const ml_run_opts *o, ml_err *err) {
    ml_engine_opts e = o->engine;
    ml_engine_memory m;
    ml_status st;

    e.context =
        (int32_t)(p->req.sample_tokens < p->spec.max_position ? p->req.sample_tokens
                                                              : p->spec.max_position);
    e.kv_bytes = (size_t)ml_kv_pages_for(e.context) * ml_kv_bytes(&p->spec, &p->be, 1);
    st = ml_engine_measure(&m, &p->spec, &p->be, &e, err);
    if (st == ML_OK)
        p->req.engine_bytes = m.act + m.scratch;
    return st;
}

static ml_status fill_request(ml_job_plan *p, const ml_run_opts *o, int64_t sample_tokens,
                              ml_err *err) {
    ml_weight_dtype dtype = ml_weights_dtype(&p->be, o->dtype);
    const ml_place_opts *place = &o->place;

    p->req = (ml_job_request){
        .spec = &p->spec,
        .be = &p->be,
        .speeds = &p->speeds,
        .n_node = (int32_t)(place->nodes ? place->nodes : 1),
        .gpus_per_node = (int32_t)(place->gpus_per_node ? place->gpus_per_node : 8),
        .opts = o->trainer,
        .sample_tokens = sample_tokens_of(o, sample_tokens),
        .weight_bytes = ml_weights_bytes(&p->spec, NULL, dtype),
        .bf16 = dtype == ML_WEIGHT_BF16,
        .n_set = 1 + o->wants_ref + (o->teacher_load != NULL) + o->second_set,
        .scores = o->recipe.compute_advantages || o->recipe.preference.on,
        .mem_fraction = o->rollout.mem_fraction,
        .in_turns = o->mode.offload || o->mode.colocate,
        .stages = { .n_first = (int32_t)place->first_layers,
                    .n_last = (int32_t)place->last_layers,
                    .count_embedding = place->count_embedding,
                    .count_loss = place->count_loss },
        .engine_ranks = (int32_t)(place->engine_size > 1 ? place->engine_size : 0),
    };
    p->layout = (ml_job_layout){ .mesh = ml_run_ranks_sizes(place) };
    return ml_run_ranks_chunks(&p->layout.n_chunk, place, &p->spec, err);
}

ml_status ml_job_plan_open(ml_job_plan *p, const ml_run_opts *o, const char *kind,
                           int64_t sample_tokens, ml_err *err) {
    ml_status st;

    *p = (ml_job_plan){ .model = base_name(o->hf_checkpoint) };
    st = ml_speeds_open(&p->speeds, kind, err);
    if (st == ML_OK)
        st = ml_model_open(&p->spec, o->hf_checkpoint, o->arch.spec.word, o->arch.spec.n,
                           err);
    if (st == ML_OK)
        st = ml_backend_sizes_open(
            &p->be,
            &(ml_sizes_opts){ .kind = p->speeds.kind,
                              .memory_bytes = (size_t)p->speeds.memory_bytes,
                              .base_bytes = (size_t)p->speeds.base_bytes,
                              .f32 = o->dtype == ML_WEIGHT_F32 },
            err);
    if (st != ML_OK)
        return st;
    ml_spec_keep_kv(&p->spec, p->be.act);
    st = fill_request(p, o, sample_tokens, err);
    if (st == ML_OK)
        st = measure_engine(p, o, err);
    return st == ML_OK ? ml_job_planner_open(&p->planner, &p->req, err) : st;
}

void ml_job_plan_close(ml_job_plan *p) {
    ml_job_planner_close(p->planner);
    ml_backend_close(&p->be);
    ml_spec_close(&p->spec);
}

/* --- text --------------------------------------------------------------------- */

#define GIB 0x1p30

static double share(const ml_job_cost *c, double s) {
    return 100 * s / c->step_s;
}

static void say_layout(ml_text *out, const ml_job_cost *c) {
    const int32_t *n = c->mesh.size;

    ml_text_printf(out, "tp %d, cp %d, dp %d, pp %d", (int)n[ML_MESH_TP],
                   (int)n[ML_MESH_CP], (int)n[ML_MESH_DP], (int)n[ML_MESH_PP]);
    if (c->layout.n_chunk > 1)
        ml_text_printf(out, " x %d", (int)c->layout.n_chunk);
    ml_text_printf(out, ", ep %d", (int)c->mesh.ep);
    if (c->mesh.etp > 1)
        ml_text_printf(out, ", etp %d", (int)c->mesh.etp);
    if (c->mesh.gather != n[ML_MESH_TP])
        ml_text_printf(out, ", weights over %d ranks", (int)c->mesh.gather);
    if (c->layout.recompute)
        ml_text_printf(out, ", --recompute-granularity full");
}

static void say_head(ml_text *out, const ml_job_plan *p) {
    int32_t world = p->req.n_node * p->req.gpus_per_node;

    ml_text_printf(out, "%s (%s, %.2f B parameters) on %d x %s, %d to a node\n", p->model,
                   p->spec.family, (double)ml_spec_param_count(&p->spec) / 1e9, (int)world,
                   p->speeds.name, (int)p->req.gpus_per_node);
}

static void say_engine(ml_text *out, const ml_job_plan *p, const ml_job_cost *c) {
    if (c->kv_bytes <= 0) {
        ml_text_printf(out, "  no room for an engine of %d GPU%s beside training: %s\n",
                       (int)c->engine_ranks, c->engine_ranks == 1 ? "" : "s",
                       p->req.in_turns ? "give engines GPUs of their own"
                                       : "use --offload, or GPUs of their own");
        return;
    }
    if (c->engine_bytes > 0)
        ml_text_printf(out, "  %-34s %10.3f, engines of %d GPU%s\n", "rollout weights",
                       c->engine_bytes / GIB, (int)c->engine_ranks,
                       c->engine_ranks == 1 ? "" : "s");
    ml_text_printf(out, "  %-34s %10.3f, %.0f tokens\n",
                   p->req.in_turns ? "KV cache, in turns with training"
                                   : "KV cache, from what is left",
                   c->kv_bytes / GIB, c->kv_tokens);
}

static void say_memory(ml_text *out, const ml_job_plan *p, const ml_job_cost *c) {
    ml_text_printf(out, "\nmemory of a rank%s, GiB\n",
                   c->mesh.size[ML_MESH_PP] > 1 ? ", of the stage that needs most" : "");
    for (int i = 0; i < ML_JOB_MEMORY_ROWS; i++)
        if (c->memory.row[i] > 0)
            ml_text_printf(out, "  %-34s %10.3f\n", ml_job_memory_names[i],
                           c->memory.row[i] / GIB);
    ml_text_printf(out, "  %-34s %10.3f of %.1f%s\n", "total", c->memory.total / GIB,
                   p->speeds.memory_bytes / GIB, c->fits ? "" : ": it does not fit");
    say_engine(out, p, c);
}

static void say_time(ml_text *out, const ml_job_cost *c) {
    const struct {
        const char *what;
        double s;
    } row[] = {
        { "compute", c->compute_s },        { "exposed communication", c->exposed_s },
        { "pipeline bubble", c->bubble_s }, { "gradients and weights", c->reduce_s },
        { "optimizer", c->optimizer_s },    { "host", c->host_s }
    };

    ml_text_printf(out, "\ntrain step, ms\n");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].s > 0)
            ml_text_printf(out, "  %-34s %10.1f %5.1f %%\n", row[i].what, 1e3 * row[i].s,
                           share(c, row[i].s));
    ml_text_printf(out, "  %-34s %10.1f\n", "step", 1e3 * c->step_s);
    ml_text_printf(out, "  %-34s %10.0f, %.0f of a GPU\n", "tokens/s", c->tokens_per_s,
                   c->tokens_per_s / ml_mesh_world(&c->mesh));
    ml_text_printf(out, "  %-34s %10.0f\n", "model TFLOP/s of a GPU",
                   c->flops_per_s_gpu / 1e12);
}

static void say_bytes(ml_text *out, const ml_job_cost *c) {
    if (ml_mesh_world(&c->mesh) == 1)
        return;
    ml_text_printf(out, "\n%-36s %10s %10s\n", "a rank receives in a step, GB", "NVLink",
                   "network");
    for (int i = 0; i < ML_TRAFFICS; i++)
        if (c->bytes[i][ML_LINK_NODE] + c->bytes[i][ML_LINK_NETWORK] > 0)
            ml_text_printf(out, "  %-34s %10.2f %10.2f\n", ml_job_traffic_names[i],
                           c->bytes[i][ML_LINK_NODE] / 1e9,
                           c->bytes[i][ML_LINK_NETWORK] / 1e9);
    ml_text_printf(out, "  %-34s %10.1f ms, %.1f of them exposed\n",
                   "time of all communication", 1e3 * c->comm_s,
                   1e3 * (c->exposed_s + c->reduce_s));
}

void ml_job_text(ml_text *out, const ml_job_plan *p, const ml_job_cost *c) {
    say_head(out, p);
    ml_text_printf(out, "layout     ");
    say_layout(out, c);
    ml_text_printf(out,
                   "\nstep       %lld samples of %lld tokens; %lld micro-batches of %lld "
                   "tokens a rank\n",
                   (long long)(c->step_tokens / (double)p->req.sample_tokens),
                   (long long)p->req.sample_tokens, (long long)c->n_micro,
                   (long long)c->micro_tokens);
    say_memory(out, p, c);
    say_time(out, c);
    say_bytes(out, c);
}

void ml_job_table(ml_text *out, const ml_job_plan *p, const ml_job_cost *c, int32_t n) {
    say_head(out, p);
    ml_text_printf(out, "%4s %4s %5s %7s %4s %9s %8s %8s %9s %10s %7s %8s\n", "tp", "cp",
                   "dp", "pp", "ep", "recompute", "GiB", "KV GiB", "step ms", "tokens/s",
                   "bubble", "exposed");
    for (int32_t i = 0; i < n; i++, c++) {
        const int32_t *s = c->mesh.size;
        ml_text_printf(
            out,
            "%4d %4d %5d %3d x %d %4d %9s %8.1f %8.1f %9.1f %10.0f %5.1f %% %6.1f %%\n",
            (int)s[ML_MESH_TP], (int)s[ML_MESH_CP], (int)s[ML_MESH_DP], (int)s[ML_MESH_PP],
            (int)c->layout.n_chunk, (int)c->mesh.ep,
            c->layout.recompute ? "full" : "as given", c->memory.total / GIB,
            c->kv_bytes / GIB, 1e3 * c->step_s, c->tokens_per_s, share(c, c->bubble_s),
            share(c, c->exposed_s + c->reduce_s));
    }
}

void ml_job_warn(ml_text *out, const ml_job_plan *p) {
    bool told[ML_OP_COUNT] = { false };
    int n = 0;

    for (int32_t i = 0; i < p->spec.n_node; i++) {
        ml_op_id op = p->spec.node[i].op;
        if (ml_cuda_has_op(op) || told[op])
            continue;
        told[op] = true;
        ml_text_printf(out, "%s%s", n++ ? ", " : "the CUDA backend has no kernel yet for ",
                       ml_op_infos[op].name);
    }
    if (n)
        ml_text_printf(out, ": their times are estimates");
}

/* --- JSON --------------------------------------------------------------------- */

static void put(ml_json_out *o, const char *key, double x) {
    ml_json_key(o, key);
    ml_json_exact(o, x);
}

static void put_layout(ml_json_out *o, const ml_job_cost *c) {
    ml_json_key(o, "layout");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "tp", c->mesh.size[ML_MESH_TP]);
    ml_json_put_int(o, "cp", c->mesh.size[ML_MESH_CP]);
    ml_json_put_int(o, "dp", c->mesh.size[ML_MESH_DP]);
    ml_json_put_int(o, "pp", c->mesh.size[ML_MESH_PP]);
    ml_json_put_int(o, "ep", c->mesh.ep);
    ml_json_put_int(o, "etp", c->mesh.etp);
    ml_json_put_int(o, "virtual_stages", c->layout.n_chunk > 1 ? c->layout.n_chunk : 1);
    ml_json_put_int(o, "weights_over", c->mesh.gather);
    ml_json_put_bool(o, "recompute_full", c->layout.recompute);
    ml_json_end(o, '}');
}

static void put_memory(ml_json_out *o, const ml_job_cost *c) {
    ml_json_key(o, "memory_bytes");
    ml_json_begin(o, '{');
    for (int i = 0; i < ML_JOB_MEMORY_ROWS; i++)
        put(o, ml_job_memory_names[i], floor(c->memory.row[i]));
    put(o, "total", floor(c->memory.total));
    ml_json_end(o, '}');
    ml_json_put_bool(o, "fits", c->fits);
    ml_json_put_int(o, "worst_stage", c->worst_stage);
    ml_json_put_int(o, "engine_gpus", c->engine_ranks);
    put(o, "engine_weight_bytes", floor(c->engine_bytes));
    put(o, "kv_cache_bytes", floor(c->kv_bytes));
    put(o, "kv_cache_tokens", c->kv_tokens);
}

static void put_bytes(ml_json_out *o, const ml_job_cost *c) {
    static const char *const link[ML_LINKS] = { "nvlink", "network" };

    ml_json_key(o, "received_bytes");
    ml_json_begin(o, '{');
    for (int l = 0; l < ML_LINKS; l++) {
        ml_json_key(o, link[l]);
        ml_json_begin(o, '{');
        for (int i = 0; i < ML_TRAFFICS; i++)
            put(o, ml_job_traffic_names[i], floor(c->bytes[i][l]));
        ml_json_end(o, '}');
    }
    ml_json_end(o, '}');
}

static void put_cost(ml_json_out *o, const ml_job_cost *c) {
    ml_json_begin(o, '{');
    put_layout(o, c);
    ml_json_put_int(o, "micro_batches", c->n_micro);
    ml_json_put_int(o, "micro_batch_tokens", c->micro_tokens);
    put_memory(o, c);
    put(o, "compute_s", c->compute_s);
    put(o, "exposed_s", c->exposed_s);
    put(o, "bubble_s", c->bubble_s);
    put(o, "reduce_s", c->reduce_s);
    put(o, "optimizer_s", c->optimizer_s);
    put(o, "host_s", c->host_s);
    put(o, "step_s", c->step_s);
    put(o, "communication_s", c->comm_s);
    put(o, "tokens_per_s", c->tokens_per_s);
    put(o, "model_flops_per_s_of_a_gpu", c->flops_per_s_gpu);
    put_bytes(o, c);
    ml_json_end(o, '}');
}

void ml_job_json(ml_text *out, const ml_job_plan *p, const ml_job_cost *c, int32_t n,
                 int32_t n_tried) {
    ml_json_out o = { .to = out };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "family", p->spec.family);
    put(&o, "parameters", (double)ml_spec_param_count(&p->spec));
    ml_json_put_word(&o, "device_kind", p->speeds.kind);
    ml_json_put_int(&o, "nodes", p->req.n_node);
    ml_json_put_int(&o, "gpus_per_node", p->req.gpus_per_node);
    ml_json_put_int(&o, "sample_tokens", p->req.sample_tokens);
    if (n_tried)
        ml_json_put_int(&o, "layouts_tried", n_tried);
    ml_json_key(&o, "layouts");
    ml_json_begin(&o, '[');
    for (int32_t i = 0; i < n; i++)
        put_cost(&o, &c[i]);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_text_printf(out, "\n");
}
