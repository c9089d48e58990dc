/* Specs of one rank of a tensor-parallel group: who has which heads, columns and rows. */
#include <stdio.h>
#include <string.h>

#include "model/kv.h"
#include "model/spec_cut.h"
#include "model/spec_shard.h"
#include "tests/support/must.h"

#define DATA "tests/golden/data/"

/* Each group is with one rank at least, and equal counts are in order. */
static void check_deal(const ml_deal *d, int32_t n_rank) {
    int32_t end = 0;

    for (int32_t r = 0; r < n_rank; r++) {
        CHECK(d->first[r] >= 0 && d->first[r] <= end);
        CHECK(d->first[r] + d->count <= d->n_group);
        end = d->first[r] + d->count > end ? d->first[r] + d->count : end;
    }
    CHECK(end == d->n_group);
}

static void every_group_has_a_rank(void) {
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t n = 1; n <= 40; n++)
            for (int32_t multiple = 1; multiple <= 16; multiple *= 4)
                check_deal(ml_deal_even(&a, ranks, n, multiple), ranks);
    ml_arena_release(&a);
}

/* Heads of a rank use the keys of that rank, in equal shares. */
static void check_heads(ml_arena *a, int32_t n_rank, int32_t n_head, int32_t n_key) {
    ml_head_deal d = ml_deal_heads(a, n_rank, n_head, n_key);
    int32_t group = n_head / n_key;
    int32_t each = n_head / d.head->n_group, heads = each * d.head->count;

    check_deal(d.head, n_rank);
    check_deal(d.key, n_rank);
    CHECK(heads % d.key->count == 0);
    for (int32_t r = 0; r < n_rank; r++)
        for (int32_t h = 0; h < heads; h++) {
            int32_t key = (each * d.head->first[r] + h) / group;
            CHECK(key == d.key->first[r] + h / (heads / d.key->count));
        }
}

static void heads_stay_with_their_keys(void) {
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t n_key = 1; n_key <= 9; n_key++)
            for (int32_t group = 1; group <= 8; group++)
                check_heads(&a, ranks, n_key * group, n_key);
    ml_arena_release(&a);
}

/* A row of q, k and v, cut and merged. */
static void merging_restores_the_row(void) {
    enum { N_KEY = 3, GROUP = 4, DIM = 2, Q = N_KEY * GROUP * DIM, K = N_KEY * DIM };
    ml_arena a;

    ml_arena_init(&a, "test");
    for (int32_t ranks = 2; ranks <= 8; ranks++) {
        ml_head_deal d = ml_deal_heads(&a, ranks, N_KEY * GROUP, N_KEY);
        int32_t n_run, row[Q + 2 * K];
        ml_cut c = { 0 };
        const ml_col_run *run;

        CHECK(ml_cut_add(&c, Q + K, K, d.key) && ml_cut_add(&c, 0, Q, d.head) &&
              ml_cut_add(&c, Q, K, d.key));
        CHECK(ml_cut_covers(&c, Q + 2 * K) && !ml_cut_covers(&c, Q + 2 * K + 1));
        run = ml_cut_runs(&a, &c, ranks, &n_run);
        memset(row, 0xff, sizeof row);
        for (int32_t i = 0; i < n_run; i++)
            for (int64_t k = 0; k < run[i].n; k++) {
                int64_t at = run[i].from + k;
                int part = 0;
                while (at >= ml_cut_offset(&c, part + 1))
                    part++;
                CHECK(row[run[i].to + k] == -1); /* one owner */
                row[run[i].to + k] = (int32_t)(ml_cut_first(&c, part, run[i].rank) + at -
                                               ml_cut_offset(&c, part));
            }
        for (int32_t i = 0; i < Q + 2 * K; i++)
            CHECK(row[i] == i);
    }
    ml_arena_release(&a);
}

static void open_rank(ml_spec *s, const char *dir, int32_t n_rank, int32_t rank) {
    MUST(ml_spec_open(s, dir, &err));
    MUST(ml_spec_shard(s, n_rank, rank, &err));
}

static int count_ops(const ml_spec *s, ml_op_id op) {
    int n = 0;
    for (int32_t i = 0; i < s->n_node; i++)
        n += s->node[i].op == op;
    return n;
}

static void one_rank_changes_nothing(void) {
    ml_spec a, b;

    MUST(ml_spec_open(&a, DATA "llama", &err));
    open_rank(&b, DATA "llama", 1, 0);
    CHECK(a.n_node == b.n_node && a.n_value == b.n_value && a.n_param == b.n_param);
    CHECK(ml_spec_param_count(&a) == ml_spec_param_count(&b) && !b.n_rank);
    ml_spec_close(&a);
    ml_spec_close(&b);
}

/* Attention's outputs, o_proj, the gated activation, down_proj; and the logits. */
static void a_dense_layer_has_four_gathers(void) {
    static const char *const models[] = { "llama", "qwen3", "mistral",
                                          "phi3",  "glm4",  "gemma2" };

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[64];
        ml_spec s;

        snprintf(dir, sizeof dir, DATA "%s", models[i]);
        open_rank(&s, dir, 2, 1);
        CHECK(count_ops(&s, ML_OP_GATHER_COLS) == 4 * s.n_layer + 1);
        CHECK(count_ops(&s, ML_OP_MERGE_COLS) == 4 * s.n_layer + 1);
        CHECK(count_ops(&s, ML_OP_SLICE) == 0);
        CHECK(s.node[s.n_node - 1].op == ML_OP_MERGE_COLS && s.n_rank == 2);
        ml_spec_close(&s);
    }
}

static int64_t rows_of(const ml_spec *s, const char *name) {
    int32_t member;
    return s->param[ml_spec_find(s, ml_str_of(name), &member)].shape[0];
}

/* 4 heads of 16, 2 keys, an MLP of 56, a vocabulary of 83. */
static void each_rank_has_its_rows(void) {
    static const struct {
        int32_t n_rank;
        int64_t q, k, gate, head;
    } want[] = {
        { 2, 2, 1, 32, 48 }, { 3, 2, 1, 32, 32 }, { 4, 1, 1, 16, 32 }, { 8, 1, 1, 16, 16 }
    };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (int32_t r = 0; r < want[i].n_rank; r++) {
            ml_spec s;
            int64_t d;

            open_rank(&s, DATA "llama", want[i].n_rank, r);
            d = rows_of(&s, "model.layers.0.self_attn.k_proj.weight") / want[i].k;
            CHECK(rows_of(&s, "model.layers.0.self_attn.q_proj.weight") == want[i].q * d);
            CHECK(rows_of(&s, "model.layers.0.mlp.gate_proj.weight") == want[i].gate);
            CHECK(rows_of(&s, "lm_head.weight") == want[i].head);
            CHECK(rows_of(&s, "model.embed_tokens.weight") == 83);
            ml_spec_close(&s);
        }
}

/* Projections, KV pages: half of them each. */
static void two_ranks_have_half_each(void) {
    ml_backend be;
    ml_spec whole, half;

    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    MUST(ml_spec_open(&whole, DATA "qwen3", &err));
    open_rank(&half, DATA "qwen3", 2, 0);
    CHECK(2 * ml_kv_bytes(&half, &be, 1) == ml_kv_bytes(&whole, &be, 1));
    CHECK(ml_spec_param_count(&half) < ml_spec_param_count(&whole) * 3 / 4);
    ml_spec_close(&whole);
    ml_spec_close(&half);
    ml_backend_close(&be);
}

static void a_critic_is_refused(void) {
    ml_err why = { 0 };
    ml_spec s;

    MUST(ml_spec_open_with(&s, DATA "llama", &(ml_spec_opts){ .critic = true }, &err));
    CHECK(ml_spec_shard(&s, 2, 0, &why) == ML_EUNSUP);
    CHECK_HAS(why.msg, "critic");
    ml_spec_close(&s);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "every group of columns has a rank", every_group_has_a_rank },
        { "heads stay with their keys", heads_stay_with_their_keys },
        { "merging the ranks' columns restores the row", merging_restores_the_row },
        { "a spec for one rank is the spec", one_rank_changes_nothing },
        { "a dense layer has four gathers", a_dense_layer_has_four_gathers },
        { "each rank has its rows of every matrix", each_rank_has_its_rows },
        { "each of two ranks has half of the KV cache", two_ranks_have_half_each },
        { "a critic cannot be cut for several ranks", a_critic_is_refused },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
