/* miles bench engine: generation speed of this machine, without a server.  The ranks of an
 * engine all submit the same requests and run in lock step; the first one reports. */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/commands/bench_report.h"
#include "cli/cli.h"
#include "comm/device/device_comm.h"
#include "engine/engine.h"
#include "model/spec_shard.h"
#include "plugin/model_family.h"
#include "run/run_ranks.h"
#include "train/memory.h"

enum { WARMUP_INPUT = 32, WARMUP_OUTPUT = 4 };

typedef struct bench_job {
    const ml_config *config;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_tokenizer *tokenizer;
    ml_backend be;
    ml_run_ranks hosts;
    ml_comm *comm; /* the ranks of the engine; NULL: one */
    ml_weights weights;
    ml_engine *engine;
    ml_bench_load load;
    ml_bench_run run;
    ml_bench_engine seen;
    size_t base_bytes;        /* in use before the model is loaded */
    int64_t n_first, n_token; /* since the step began: first tokens, all tokens */
} bench_job;

/* --- opening ---------------------------------------------------------------- */

/* A wait for another rank in a step that takes longer fails. */
#define STEP_DEADLINE_S 600

static ml_status open_ranks(bench_job *j, ml_err *err) {
    ml_comm *world = j->config->run.ranks.world, *host = NULL;
    long long tp = j->config->bench.tp, size = ml_comm_size(world);
    ml_status st = ml_run_ranks_hosts(&j->hosts, world, err);

    if (st != ML_OK)
        return st;
    if (size != tp)
        return ml_fail(err, ML_EUSAGE,
                       "--tp-size is %lld, and the launcher started %lld rank%s: start "
                       "mpirun -n %lld miles bench engine ..., or set --tp-size %lld",
                       tp, size, size == 1 ? "" : "s", tp, size);
    if (size == 1)
        return ML_OK;
    st = world->split(world, &host, 0, world->rank, err);
    if (st == ML_OK) {
        j->comm = ml_comm_device(host);
        j->comm->group = "engine";
        j->comm->deadline_s = STEP_DEADLINE_S;
    }
    return st;
}

static ml_status open_backend(bench_job *j, ml_err *err) {
    ml_backend_opts opts = j->config->run.backend;
    ml_status st;

    opts.n_thread = ml_run_ranks_threads(&j->hosts, opts.n_thread);
    st = ml_comm_agree(j->comm, ml_backend_open(&j->be, &opts, err), err);
    return st == ML_OK && j->comm ? ml_comm_device_attach(j->comm, j->be.stream, err) : st;
}

/* Of several ranks, each has its rows. */
static ml_status open_weights(bench_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_weight_dtype dtype = c->run.dtype;
    bool dummy = c->load_format == ML_LOAD_DUMMY;
    ml_status st = ML_OK;

    if (dummy)
        dtype = dtype == ML_WEIGHT_AUTO ? ML_WEIGHT_BF16 : dtype;
    else
        st = ml_checkpoint_open(&j->checkpoint, c->run.hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_weights_keep_kv(&j->spec, j->checkpoint, dtype, c->run.kv_dtype, err);
    if (st == ML_OK && j->comm)
        st = ml_spec_shard(&j->spec, j->comm->size, j->comm->rank, err);
    if (st == ML_OK && dummy)
        st = ml_weights_dummy(&j->weights, &j->spec, dtype, (uint64_t)c->bench.seed, &j->be,
                              &j->arena, err);
    else if (st == ML_OK)
        st = ml_weights_load(&j->weights, &j->spec, j->checkpoint, dtype, &j->be, &j->arena,
                             err);
    return st;
}

/* The machine's memory, or the GPU's free memory before the weights were loaded. */
static double all_bytes(const bench_job *j) {
    const ml_device *dev = j->be.dev;

    if (dev->available)
        return (double)ml_run_ranks_bytes(&j->hosts, dev->available(dev), false) +
               (double)j->weights.buf.bytes;
    return (double)ml_run_ranks_bytes(
        &j->hosts, (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), true);
}

/* Bytes left for the KV cache; 0: as much as the running requests could use. */
static ml_status kv_bytes(const bench_job *j, size_t *out, ml_err *err) {
    double all = all_bytes(j);
    double part = j->config->bench.mem_fraction * all - (double)j->weights.buf.bytes;

    *out = 0;
    if (j->config->bench.mem_fraction <= 0.0)
        return ML_OK;
    if (part <= 0.0)
        return ml_fail(err, ML_EUSAGE,
                       "--mem-fraction-static %g of %.1f GiB is less than the %.1f GiB of "
                       "the weights: increase it",
                       j->config->bench.mem_fraction, all / 0x1p30,
                       (double)j->weights.buf.bytes / 0x1p30);
    *out = (size_t)part;
    return ML_OK;
}

static ml_status open_engine(bench_job *j, ml_err *err) {
    const ml_config *c = j->config;
    int32_t least = WARMUP_INPUT + WARMUP_OUTPUT;
    ml_engine_opts o = { .context = j->load.longest > least ? j->load.longest : least,
                         .max_running = (int32_t)c->bench.max_running,
                         .max_waiting = j->load.n + (int32_t)c->bench.n_warmup,
                         .chunk = (int32_t)c->bench.chunk,
                         .no_prefix_cache = c->bench.no_prefix_cache,
                         .no_overlap = c->bench.steps.no_overlap,
                         .record_rows = ml_record_rows(&c->bench.steps),
                         .comm = j->comm };
    ml_engine_memory m;
    ml_status st =
        ml_speculative_resolve(&o.draft, &c->run.speculative, c->run.hf_checkpoint,
                               c->run.dtype, j->comm != NULL, err);

    if (st == ML_OK)
        st = kv_bytes(j, &o.kv_bytes, err);
    if (st == ML_OK)
        st = ml_engine_measure(&m, &j->spec, &j->be, &o, err);
    if (st != ML_OK)
        return st;
    j->seen.planned_bytes = j->base_bytes + j->weights.buf.bytes + m.kv + m.act + m.scratch;
    return ml_engine_open(&j->engine, &j->spec, &j->weights, &j->be, &o, err);
}

static ml_status open_all(bench_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st = open_ranks(j, err);

    if (st == ML_OK)
        st = ml_model_open(&j->spec, c->run.hf_checkpoint, c->run.arch.spec.word,
                           c->run.arch.spec.n, err);
    if (st == ML_OK && c->bench.dataset)
        st = ml_tokenizer_open(&j->tokenizer, c->run.hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_bench_load_make(&j->load, &j->arena, c, j->spec.n_vocab, j->tokenizer, err);
    if (st == ML_OK)
        st = open_backend(j, err);
    if (st != ML_OK)
        return st;
    j->base_bytes = ml_memory_base(&j->be);
    st = open_weights(j, err);
    if (st == ML_OK)
        st = open_engine(j, err);
    return ml_comm_agree(j->comm, st, err);
}

/* --- running ---------------------------------------------------------------- */

static ml_gen_request request_of(const bench_job *j, const int32_t *prompt, int32_t n,
                                 int32_t n_out, uint64_t sample) {
    return (ml_gen_request){ .prompt = prompt,
                             .n_prompt = n,
                             .draw = { .temperature = 1.0f,
                                       .top_p = 1.0f,
                                       .repetition = 1.0f,
                                       .seed = (uint64_t)j->config->bench.seed,
                                       .sample = sample },
                             .max_new = n_out,
                             .ignore_eos = true,
                             .score_from = -1 };
}

static void on_warmup(void *ud, const ml_gen_update *u) {
    (void)ud;
    (void)u;
}

/* Tickets are the numbers of the load's requests. */
static void on_update(void *ud, const ml_gen_update *u) {
    bench_job *j = ud;
    int32_t i = (int32_t)u->ticket;
    double now = ml_clock_s();

    j->n_first += j->run.trace[i].n_token == 0 && u->answer.n > 0;
    j->n_token += u->answer.n;
    ml_bench_token(&j->run, i, u->answer.n, now);
    if (u->finish == ML_FINISH_ABORT)
        ml_bench_failed(&j->run, i, u->message, now);
    else if (u->finish != ML_FINISH_NOT)
        ml_bench_ended(&j->run, i, j->load.item[i].n, now);
}

static ml_status warm_up(bench_job *j, ml_err *err) {
    ml_status st = ML_OK;

    for (int64_t i = 0; i < j->config->bench.n_warmup && st == ML_OK; i++) {
        const int32_t *prompt =
            ml_bench_warmup(&j->arena, j->config, j->spec.n_vocab, WARMUP_INPUT, i);
        ml_gen_request r = request_of(j, prompt, WARMUP_INPUT, WARMUP_OUTPUT, 0);
        st = ml_engine_submit(j->engine, &r, on_warmup, NULL, 0, err);
        while (st == ML_OK && ml_engine_step(j->engine))
            ;
    }
    ml_engine_flush(j->engine);
    return st;
}

static ml_status submit_all(bench_job *j, ml_err *err) {
    ml_status st = ML_OK;

    j->run.begin_s = ml_clock_s();
    for (int32_t i = 0; i < j->load.n && st == ML_OK; i++) {
        const ml_bench_item *it = &j->load.item[i];
        ml_gen_request r = request_of(j, it->id, it->n, it->n_out, (uint64_t)i);
        ml_bench_sent(&j->run, i, ml_clock_s());
        st = ml_engine_submit(j->engine, &r, on_update, j, (uint64_t)i, err);
    }
    return st;
}

/* A step in which every request got a token other than its first had no prompt rows. */
static void note_step(bench_job *j, const ml_gen_stats *before, const ml_gen_stats *now) {
    int64_t in_use = now->n_page - now->n_page_free - now->n_page_cached;
    int64_t took_part = now->n_running + (now->n_finished - before->n_finished);
    double s = now->step_s - before->step_s;

    if (j->n_first == 0 && j->n_token == took_part) {
        j->seen.decode_s += s;
        j->seen.n_decode += j->n_token;
    } else {
        j->seen.prefill_s += s;
    }
    if (in_use > j->seen.n_page_peak)
        j->seen.n_page_peak = in_use;
}

static void run_steps(bench_job *j) {
    ml_gen_stats start, before, now;

    ml_engine_stats(j->engine, &start);
    for (now = start;;) {
        before = now;
        j->n_first = j->n_token = 0;
        if (!ml_engine_step(j->engine))
            break;
        ml_engine_stats(j->engine, &now);
        note_step(j, &before, &now);
    }
    j->seen.n_page = now.n_page;
    j->seen.n_cached = now.n_cached_token - start.n_cached_token;
    j->seen.n_preempt = now.n_preempt - start.n_preempt;
    j->seen.n_overlapped = now.n_overlapped - start.n_overlapped;
    j->seen.n_step = now.n_step - start.n_step;
    j->seen.n_prefill = now.n_prompt_token - start.n_prompt_token - j->seen.n_cached;
    j->seen.sampler_share = (now.sample_s - start.sample_s) / (now.step_s - start.step_s);
    j->seen.scheduler_share = 1.0 - j->seen.sampler_share -
                              (now.model_s - start.model_s) / (now.step_s - start.step_s);
}

/* --- the command ------------------------------------------------------------ */

static ml_status report(bench_job *j, ml_err *err) {
    ml_text text = { 0 };

    if (!ml_comm_is_first(j->comm))
        return ML_OK;
    ml_bench_text(&text, &j->run, &j->seen);
    fputs(text.ptr, stdout);
    ml_text_release(&text);
    return ml_bench_conclude(&j->run, &j->seen, j->config->bench.output, err);
}

static ml_status run_job(bench_job *j, ml_err *err) {
    double start = ml_clock_s();
    ml_status st = open_all(j, err);

    if (st == ML_OK)
        st = warm_up(j, err);
    if (st != ML_OK)
        return st;
    j->seen.load_s = ml_clock_s() - start;
    j->seen.backend = j->be.name;
    j->seen.level = j->be.level;
    j->seen.n_thread = j->be.n_thread;
    ml_bench_run_init(&j->run, &j->arena, &j->load);
    st = submit_all(j, err);
    if (st != ML_OK)
        return st;
    run_steps(j);
    j->seen.peak_bytes = ml_memory_peak(&j->be);
    return report(j, err);
}

ml_status ml_cmd_bench_engine(const ml_config *c, ml_err *err) {
    bench_job j = { .config = c };
    ml_status st;

    ml_arena_init(&j.arena, "bench");
    st = ml_comm_agree(c->run.ranks.world, run_job(&j, err), err);
    ml_engine_close(j.engine);
    ml_weights_close(&j.weights);
    if (j.be.name && j.comm)
        ml_comm_device_detach(j.comm);
    if (j.be.name)
        ml_backend_close(&j.be);
    if (j.comm)
        j.comm->close(j.comm);
    ml_checkpoint_close(j.checkpoint);
    ml_tokenizer_close(j.tokenizer);
    ml_spec_close(&j.spec);
    ml_arena_release(&j.arena);
    return st;
}
