/* The schedule of a pipeline: Megatron's order and counts, and moves that match. */
#include <string.h>

#include "model/stage.h"
#include "tests/support/test.h"
#include "train/pipeline.h"

static ml_arena arena;

static bool same(const ml_pass *a, const ml_pass *b) {
    return a->micro == b->micro && a->chunk == b->chunk && a->backward == b->backward;
}

static void same_text(const char *got, const char *want) {
    if (strcmp(got, want))
        ml_test_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", got, want);
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* "F0 F1 B0 ..." of a rank; chunks as letters behind the micro-batch. */
static const char *passes(int32_t n_stage, int32_t n_chunk, int32_t n_micro, int32_t rank) {
    ml_pipeline_opts o = { n_stage, n_chunk, n_micro, true };
    const char *text = "";
    ml_pass *p;
    int32_t n = ml_pipeline_passes(&p, &arena, &o, rank);

    for (int32_t i = 0; i < n; i++)
        text = ml_arena_printf(&arena, n_chunk > 1 ? "%s%s%c%d%c" : "%s%s%c%d", text,
                               i ? " " : "", p[i].backward ? 'B' : 'F', (int)p[i].micro,
                               'a' + (int)p[i].chunk);
    return text;
}

/* Figure 4 of Narayanan et al. 2021: 4 ranks, 8 micro-batches; then with two chunks. */
static void the_order_is_megatrons(void) {
    ml_arena_init(&arena, "test");
    same_text(passes(4, 1, 8, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    same_text(passes(4, 1, 8, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    same_text(passes(4, 1, 2, 0), "F0 F1 B0 B1");
    same_text(passes(2, 2, 4, 1), "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b "
                                  "B2a B3a");
    same_text(passes(2, 2, 4, 0), "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b "
                                  "B2a B3a");
    ml_arena_release(&arena);
}

/* Without bubbles the first and the last tick of a rank are n_stage - 1 ticks apart from the
 * others'; 1F1B keeps n_stage - rank micro-batches. */
static void check_counts(const ml_pipeline_opts *o, int32_t rank) {
    int32_t n_chunk = o->n_chunk ? o->n_chunk : 1, run = 0;
    ml_pipeline p;

    ml_pipeline_schedule(&p, &arena, o, rank);
    for (int32_t t = 0; t < p.n_tick; t++)
        run += p.tick[t].runs;
    CHECK(run == (o->backward ? 2 : 1) * o->n_micro * n_chunk);
    if (n_chunk == 1 && o->backward)
        CHECK(p.n_set[0] == smaller(o->n_stage - rank, o->n_micro));
    if (!o->backward) {
        CHECK(p.n_set[0] == 1);
        CHECK(n_chunk > 1 || p.n_tick == o->n_micro + o->n_stage - 1);
    } else if (o->n_micro % o->n_stage == 0) {
        CHECK(p.n_tick == 2 * (o->n_micro * n_chunk + o->n_stage - 1));
    }
}

/* Every receive has its send in the same tick, and comes to a set that is free. */
static void check_moves(const ml_pipeline_opts *o) {
    ml_pipeline p[8];

    for (int32_t r = 0; r < o->n_stage; r++)
        ml_pipeline_schedule(&p[r], &arena, o, r);
    for (int32_t r = 0; r < o->n_stage; r++) {
        CHECK(p[r].n_tick == p[0].n_tick);
        for (int32_t t = 0; t < p[r].n_tick; t++)
            for (int32_t i = 0; i < p[r].tick[t].n_move; i++) {
                const ml_pipeline_move *m = &p[r].tick[t].move[i];
                const ml_pipeline_tick *other = &p[m->peer].tick[t];
                int32_t found = 0;
                for (int32_t k = 0; k < other->n_move; k++)
                    found += other->move[k].peer == r && other->move[k].send != m->send &&
                             other->move[k].of.micro == m->of.micro &&
                             other->move[k].of.backward == m->of.backward;
                CHECK(found == 1 && m->peer != r);
                CHECK(m->send || (p[r].tick[t].runs && same(&p[r].tick[t].pass, &m->of)));
            }
    }
}

/* The activations of a micro-batch stay in their set until its backward pass. */
static void check_sets(const ml_pipeline_opts *o, int32_t rank) {
    int32_t in[8][64];
    ml_pipeline p;

    memset(in, -1, sizeof in);
    ml_pipeline_schedule(&p, &arena, o, rank);
    for (int32_t t = 0; t < p.n_tick; t++) {
        const ml_pass *x = &p.tick[t].pass;
        int32_t *set = p.tick[t].runs ? &in[x->chunk][x->micro % p.n_set[x->chunk]] : NULL;
        if (!set)
            continue;
        CHECK(*set == (x->backward ? x->micro : -1));
        *set = x->backward ? -1 : x->micro;
    }
}

static void every_schedule_runs(void) {
    for (int32_t n_stage = 1; n_stage <= 8; n_stage++)
        for (int32_t n_chunk = 1; n_chunk <= (n_stage > 1 ? 4 : 1); n_chunk++)
            for (int32_t n_micro = 0; n_micro <= 20; n_micro++)
                for (int back = 0; back < 2; back++) {
                    ml_pipeline_opts o = { n_stage, n_chunk, n_micro, back == 1 };
                    ml_arena_init(&arena, "test");
                    for (int32_t r = 0; r < n_stage && n_micro; r++) {
                        check_counts(&o, r);
                        if (back)
                            check_sets(&o, r);
                    }
                    check_moves(&o);
                    ml_arena_release(&arena);
                }
}

/* --- layers of stages --------------------------------------------------------- */

static const char *layers(int32_t n_layer, ml_stage_opts o) {
    int32_t n = o.n_stage * (o.n_chunk ? o.n_chunk : 1), layer[64];
    const char *text = "";
    ml_err err = { 0 };

    if (ml_stage_layers(layer, n_layer, &o, &err) != ML_OK)
        return "refused";
    for (int32_t i = 0; i < n; i++)
        text = ml_arena_printf(&arena, "%s%s%d", text, i ? " " : "",
                               (int)(layer[i + 1] - layer[i]));
    return text;
}

static void layers_are_dealt_out(void) {
    ml_arena_init(&arena, "test");
    same_text(layers(8, (ml_stage_opts){ .n_stage = 4 }), "2 2 2 2");
    same_text(layers(10, (ml_stage_opts){ .n_stage = 4 }), "2 3 3 2");
    same_text(layers(11, (ml_stage_opts){ .n_stage = 4 }), "3 3 3 2");
    same_text(layers(7, (ml_stage_opts){ .n_stage = 2 }), "4 3");
    same_text(layers(3, (ml_stage_opts){ .n_stage = 3 }), "1 1 1");
    same_text(layers(3, (ml_stage_opts){ .n_stage = 4 }), "refused");
    same_text(layers(8, (ml_stage_opts){ .n_stage = 2, .n_chunk = 2 }), "2 2 2 2");
    same_text(layers(61, (ml_stage_opts){ .n_stage = 4, .n_last = 13 }), "16 16 16 13");
    same_text(layers(94, (ml_stage_opts){ .n_stage = 4, .n_first = 23, .n_last = 23 }),
              "23 24 24 23");
    same_text(layers(4, (ml_stage_opts){ .n_stage = 2, .n_first = 3, .n_last = 1 }), "3 1");
    same_text(layers(4, (ml_stage_opts){ .n_stage = 2, .n_first = 3, .n_last = 2 }),
              "refused");
    same_text(layers(4, (ml_stage_opts){ .n_stage = 2, .n_first = 4 }), "refused");
    same_text(layers(6, (ml_stage_opts){ .n_stage = 4,
                                         .count_embedding = true,
                                         .count_loss = true }),
              "1 2 2 1");
    same_text(layers(2, (ml_stage_opts){ .n_stage = 4,
                                         .count_embedding = true,
                                         .count_loss = true }),
              "0 1 1 0");
    ml_arena_release(&arena);
}

static const ml_test tests[] = {
    { "the order of passes is Megatron's", the_order_is_megatrons },
    { "every schedule runs, with Megatron's counts and without a deadlock",
      every_schedule_runs },
    { "layers are dealt out to stages, uneven ones to the middle", layers_are_dealt_out },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
