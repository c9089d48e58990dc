/* Packing and balancing against what Miles' own code gave. */
#include <math.h>
#include <string.h>

#include "tests/support/cases.h"
#include "tests/support/test.h"
#include "train/flops.h"
#include "train/packing.h"

static void same_bin(ml_case *c, const ml_bin *got, const ml_json *want, const char *what) {
    int64_t n, *item = ml_case_i64s(c, want, &n);
    bool same = n == got->n;

    for (int64_t i = 0; same && i < n; i++)
        same = got->item[i] == item[i];
    if (!same)
        ml_case_fail(c, what);
}

static void same_bins(ml_case *c, const ml_bins *got, const ml_json *want,
                      const char *what) {
    int32_t k = 0;

    if (!want || want->n != got->n) {
        ml_case_fail(c, what);
        return;
    }
    for (const ml_json *v = want->child; v; v = v->next)
        same_bin(c, &got->bin[k++], v, what);
}

static void check_first_fit(ml_case *c) {
    int64_t n, *len = ml_case_i64s(c, ml_json_get(c->args, "lengths"), &n);
    int64_t cap = ml_case_i64(c->args, "max_tokens_per_bin", 0);
    ml_bins b = ml_pack_first_fit(&c->arena, len, (int32_t)n, cap);

    same_bins(c, &b, ml_json_get(c->out, "first_fit"), "first fit differs");
    if (b.n != ml_case_i64(c->out, "min_micro_batches", -1))
        ml_case_fail(c, "the number of micro-batches differs");
    b = ml_pack_first_fit_decreasing(&c->arena, len, (int32_t)n, cap);
    same_bins(c, &b, ml_json_get(c->out, "first_fit_decreasing"), "decreasing differs");
    ml_pack_expand(&b, &c->arena, len, (int32_t)ml_case_i64(c->args, "target_count", 0));
    same_bins(c, &b, ml_json_get(c->out, "expanded"), "expanded bins differ");
}

typedef bool balance_fn(ml_bins *out, ml_arena *a, const double *weight, int32_t n,
                        int32_t k, bool equal_size);

static void check_balance(ml_case *c, balance_fn *fn) {
    int64_t n;
    double *weight = ml_case_f64s(c, ml_json_get(c->args, "lengths"), &n);
    ml_bins b;
    bool ok = fn(&b, &c->arena, weight, (int32_t)n,
                 (int32_t)ml_case_i64(c->args, "k_partitions", 0),
                 ml_case_flag(c->args, "equal_size"));

    if (ok == (ml_json_get(c->out, "error") != NULL))
        ml_case_fail(c, "failing and not failing differ");
    else if (ok)
        same_bins(c, &b, ml_json_get(c->out, "partitions"), "partitions differ");
}

static void check_karmarkar_karp(ml_case *c) {
    check_balance(c, ml_pack_balance);
}

static void check_greedy(ml_case *c) {
    check_balance(c, ml_pack_greedy);
}

/* Sample numbers of a rank, over all steps, and the local rows of each micro-batch. */
static void check_rank(ml_case *c, const ml_schedule *s, int32_t r, const ml_json *rows,
                       const ml_json *micro) {
    int64_t n, *want = ml_case_i64s(c, rows, &n), at = 0;
    const ml_json *m = micro->child;

    for (int32_t k = 0; k < s->n_step; k++)
        for (int32_t i = 0; i < s->step[k].rank[r].n; i++) {
            const ml_bin *b = &s->step[k].rank[r].bin[i];
            for (int32_t j = 0; j < b->n && at + j < n; j++)
                if (want[at + j] != b->item[j])
                    ml_case_fail(c, "a sample lies elsewhere");
            at += b->n;
            if (!m || m->n != b->n)
                ml_case_fail(c, "a micro-batch has another size");
            m = m ? m->next : NULL;
        }
    if (at != n || m)
        ml_case_fail(c, "the number of samples or micro-batches differs");
}

static void check_schedule(ml_case *c, const ml_schedule *s) {
    int64_t n, *rollouts = ml_case_i64s(c, ml_json_get(c->out, "num_rollouts"), &n);
    const ml_json *rows = ml_json_get(c->out, "partitions")->child;
    const ml_json *micro = ml_json_get(c->out, "micro_batch_indices")->child;

    if (n != s->n_step) {
        ml_case_fail(c, "the number of steps differs");
        return;
    }
    for (int32_t k = 0; k < s->n_step; k++)
        if (rollouts[k] != s->step[k].n_rollout)
            ml_case_fail(c, "the rollouts of a step differ");
    for (int32_t r = 0; r < s->n_rank; r++, rows = rows->next, micro = micro->next)
        check_rank(c, s, r, rows, micro);
}

/* --- costs ---------------------------------------------------------------------- */

/* Whether layer i of the recorded model has experts. */
static bool is_moe(const ml_json *model, int64_t i) {
    const ml_json *freq = ml_json_get(model, "moe_layer_freq");
    int64_t every = 1;

    if (ml_case_i64(model, "num_experts", 0) == 0)
        return false;
    if (freq && freq->type == ML_JSON_ARRAY) {
        const ml_json *v = freq->child;
        while (i-- > 0)
            v = v->next;
        ml_json_i64(v, &every);
        return every > 0;
    }
    ml_json_i64(freq, &every);
    return i % every == 0;
}

static ml_flops_shape shape_of(const ml_json *model) {
    ml_flops_shape f = { .hidden = ml_case_i64(model, "hidden_size", 0),
                         .vocab = ml_case_i64(model, "vocab_size", 0),
                         .n_layer = ml_case_i64(model, "num_layers", 0),
                         .n_head = ml_case_i64(model, "num_attention_heads", 0),
                         .n_group = ml_case_i64(model, "num_query_groups", 0),
                         .head_dim = ml_case_i64(model, "kv_channels", 0),
                         .q_rank = ml_case_i64(model, "q_lora_rank", 0),
                         .kv_rank = ml_case_i64(model, "kv_lora_rank", 0),
                         .qk_dim = ml_case_i64(model, "qk_head_dim", 0),
                         .qk_rope_dim = ml_case_i64(model, "qk_pos_emb_head_dim", 0),
                         .v_dim = ml_case_i64(model, "v_head_dim", 0) };
    int64_t dense = ml_case_i64(model, "ffn_hidden_size", 0);
    int64_t moe = ml_case_i64(model, "moe_ffn_hidden_size", 0) *
                      ml_case_i64(model, "moe_router_topk", 0) +
                  ml_case_i64(model, "moe_shared_expert_intermediate_size", 0);

    for (int64_t i = 0; i < f.n_layer; i++)
        f.ffn += is_moe(model, i) ? moe : dense;
    return f;
}

static double *costs(ml_case *c, const int64_t *len, int64_t n) {
    ml_flops_shape f = shape_of(ml_json_get(c->args, "model"));
    double *cost = ML_NEW(&c->arena, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        cost[i] = ml_flops_forward(&f, len[i]);
    return cost;
}

static void check_flops(ml_case *c) {
    int64_t n, n_want, *len = ml_case_i64s(c, ml_json_get(c->args, "seqlens"), &n);
    double *want = ml_case_f64s(c, ml_json_get(c->out, "per_seq"), &n_want);
    double *cost = costs(c, len, n);

    for (int64_t i = 0; i < n; i++)
        if (!(fabs(cost[i] - want[i]) <= 1e-9 * want[i]))
            ml_case_fail(c, "the cost of a sequence differs");
}

static void flops(void) {
    ml_test_cases("fwd_flops.jsonl", check_flops);
}

/* The numbers of a model's config.json, found in its ops. */
static void shapes_are_read_off_the_spec(void) {
    ml_spec s;
    ml_flops_shape f;
    ml_err err = { 0 };

    CHECK(ml_spec_open(&s, "tests/golden/data/qwen3", &err) == ML_OK);
    f = ml_flops_shape_of(&s);
    CHECK(f.hidden == s.n_hidden && f.vocab == 83 && f.n_layer == 2);
    CHECK(f.n_head == 4 && f.n_group == 2 && f.head_dim == 12 && f.ffn == 2 * 56);
    ml_spec_close(&s);
    CHECK(ml_spec_open(&s, "tests/golden/data/qwen3_moe", &err) == ML_OK);
    f = ml_flops_shape_of(&s);
    CHECK(f.ffn == 2 * 2 * 20 + 56);
    ml_spec_close(&s);
}

static void check_dp_schedule(ml_case *c) {
    int64_t n, n_rollout, *len = ml_case_i64s(c, ml_json_get(c->args, "total_lengths"), &n);
    int64_t *rollout = ml_case_i64s(c, ml_json_get(c->args, "rollout_indices"), &n_rollout);
    bool virtual_stages = ml_case_i64(c->args, "vpp_size", 1) > 1;
    ml_schedule_opts o = {
        .global_batch_size = ml_case_i64(c->args, "global_batch_size", 0),
        .dynamic = ml_case_flag(c->args, "use_dynamic_batch_size"),
        .max_tokens = ml_case_i64(c->args, "max_tokens_per_gpu", 0),
        .micro_batch_size = ml_case_i64(c->args, "micro_batch_size", 0),
        .balance = ml_case_flag(c->args, "balance_data"),
        .allow_partial = ml_case_flag(c->args, "allow_partial_train_step"),
        .n_rank = (int32_t)ml_case_i64(c->args, "dp_size", 0),
        .n_context = (int32_t)ml_case_i64(c->args, "cp_size", 0),
    };
    ml_schedule s;
    ml_err err = { 0 };
    ml_status st;

    if (ml_case_flag(c->args, "balance_by_flops"))
        o.cost = costs(c, len, n);
    if (virtual_stages)
        o.align = (int32_t)ml_case_i64(c->args, "microbatch_group_size_per_vp_stage", 1);
    st = ml_schedule_build(&s, &c->arena, len, rollout, (int32_t)n, &o, &err);
    if ((st == ML_OK) == (ml_json_get(c->out, "error") != NULL))
        ml_case_fail(c, st == ML_OK ? "failed there" : err.msg);
    else if (st == ML_OK)
        check_schedule(c, &s);
}

static void first_fit(void) {
    ml_test_cases("first_fit.jsonl", check_first_fit);
}

static void karmarkar_karp(void) {
    ml_test_cases("karmarkar_karp.jsonl", check_karmarkar_karp);
}

static void greedy(void) {
    ml_test_cases("greedy_partition.jsonl", check_greedy);
}

static void schedules(void) {
    ml_test_cases("dp_schedule.jsonl", check_dp_schedule);
}

static void balances_by_cost(void) {
    int64_t len[] = { 10, 10, 10, 10 }, rollout[] = { 0, 1, 2, 3 };
    double cost[] = { 9, 1, 1, 9 };
    ml_schedule_opts o = {
        .global_batch_size = 4, .dynamic = true, .max_tokens = 20, .cost = cost
    };
    ml_schedule s;
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    CHECK(ml_schedule_build(&s, &a, len, rollout, 4, &o, &err) == ML_OK);
    CHECK(s.n_step == 1 && s.step[0].rank[0].n == 2);
    for (int32_t k = 0; k < s.step[0].rank[0].n; k++) {
        const ml_bin *b = &s.step[0].rank[0].bin[k];
        CHECK(b->n == 2 && cost[b->item[0]] + cost[b->item[1]] == 10);
    }
    ml_arena_release(&a);
}

static void one_step_of_all(void) {
    int64_t len[] = { 4, 5, 6, 7, 8 }, rollout[] = { 0, 1, 1, 2, 3 };
    ml_schedule_opts o = {
        .global_batch_size = 2, .one_step = true, .dynamic = true, .max_tokens = 100
    };
    ml_schedule s;
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    CHECK(ml_schedule_build(&s, &a, len, rollout, 5, &o, &err) == ML_OK);
    CHECK(s.n_step == 1 && s.step[0].n_rollout == 4 && s.step[0].rank[0].bin[0].n == 5);
    ml_arena_release(&a);
}

static int32_t trained_items(int32_t *out, const ml_bins *bins, const uint8_t *idle) {
    int32_t n = 0;

    for (int32_t k = 0; k < bins->n; k++)
        for (int32_t i = 0; i < bins->bin[k].n; i++)
            if (!idle[bins->bin[k].item[i]])
                out[n++] = bins->bin[k].item[i];
    return n;
}

/* Samples without a gradient stand in micro-batches of their own; the others of a rank keep
 * their order, and no micro-batch is larger than it may be. */
static void idle_samples_stand_apart(void) {
    int64_t len[] = { 7, 3, 9, 4, 5, 2, 8, 6 }, rollout[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    uint8_t idle[] = { 0, 1, 0, 0, 1, 0, 1, 0 }, none[8] = { 0 };
    ml_schedule_opts o = {
        .one_step = true, .dynamic = true, .max_tokens = 12, .micro_batch_size = 2
    };
    ml_schedule plain, apart;
    ml_arena a;
    ml_err err = { 0 };

    ml_arena_init(&a, "test");
    for (int dynamic = 0; dynamic < 2; dynamic++)
        for (o.n_rank = 1; o.n_rank <= 4; o.n_rank *= 2) {
            int32_t n_sample = 0, n_trained = 0;
            o.dynamic = dynamic;
            o.idle = none;
            CHECK(ml_schedule_build(&plain, &a, len, rollout, 8, &o, &err) == ML_OK);
            o.idle = idle;
            CHECK(ml_schedule_build(&apart, &a, len, rollout, 8, &o, &err) == ML_OK);
            for (int32_t r = 0; r < o.n_rank; r++) {
                const ml_bins *bins = &apart.step[0].rank[r];
                int32_t want[8], got[8], n = trained_items(got, bins, idle);
                CHECK(n == trained_items(want, &plain.step[0].rank[r], idle) &&
                      memcmp(want, got, sizeof *got * (size_t)n) == 0);
                n_trained += n;
                for (int32_t k = 0; k < bins->n; k++) {
                    const ml_bin *b = &bins->bin[k];
                    int64_t sum = 0;
                    for (int32_t i = 0; i < b->n; i++) {
                        CHECK(idle[b->item[i]] == idle[b->item[0]]);
                        sum += len[b->item[i]];
                    }
                    CHECK(b->n > 0 && (dynamic ? sum <= 12 : b->n <= 2));
                    n_sample += b->n;
                }
            }
            CHECK(n_sample == 8 && n_trained == 5);
        }
    ml_arena_release(&a);
}

/* Each bin goes to the rank with the fewest tokens so far. */
static void bins_are_dealt_to_the_lightest_rank(void) {
    int64_t len[] = { 9, 8, 4, 3, 2 };
    int32_t item[] = { 0, 1, 2, 3, 4 };
    ml_bin bin[5];
    ml_bins bins = { bin, 5 }, *deal;
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int32_t i = 0; i < 5; i++)
        bin[i] = (ml_bin){ &item[i], 1 };
    deal = ml_pack_deal(&a, &bins, len, 2);
    CHECK(deal[0].n == 3 && *deal[0].bin[1].item == 3 && *deal[0].bin[2].item == 4);
    CHECK(deal[1].n == 2 && *deal[1].bin[0].item == 1 && *deal[1].bin[1].item == 2);
    deal = ml_pack_deal(&a, &bins, len, 7);
    CHECK(deal[4].n == 1 && deal[5].n == 0 && deal[6].n == 0);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "first-fit packing is Miles'", first_fit },
    { "Karmarkar-Karp partitions are Miles'", karmarkar_karp },
    { "greedy partitions are Miles'", greedy },
    { "data-parallel schedules are Miles'", schedules },
    { "micro-batches are balanced by cost", balances_by_cost },
    { "FLOP counts are Miles'", flops },
    { "FLOP shapes come from the model's config", shapes_are_read_off_the_spec },
    { "one step takes all samples of a round", one_step_of_all },
    { "samples without a gradient get micro-batches of their own",
      idle_samples_stand_apart },
    { "bins are dealt to the rank with the fewest tokens",
      bins_are_dealt_to_the_lightest_rank },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
