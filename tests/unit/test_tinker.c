/* The messages and losses of miles tinker, and the slots that its clients train in. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/proto.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tinker/losses.h"
#include "train/lora_slots.h"

/* --- messages --------------------------------------------------------------------- */

static ml_str view(const ml_text *t) {
    return (ml_str){ t->ptr, t->len };
}

static void put_message(ml_text *to, int32_t number, ml_text *m) {
    ml_proto_put_bytes(to, number, view(m));
    ml_text_release(m);
}

/* An entry of loss_fn_inputs. */
static void put_input(ml_text *datum, const char *name, int dtype, const void *v, size_t n,
                      size_t size) {
    ml_text tensor = { 0 }, entry = { 0 };

    ml_proto_put_bytes(&tensor, 1, (ml_str){ v, n * size });
    ml_proto_put_int(&tensor, 3, (uint64_t)dtype);
    ml_proto_put_int(&tensor, 4, n);
    ml_proto_put_bytes(&entry, 1, ml_str_of(name));
    put_message(&entry, 2, &tensor);
    put_message(datum, 2, &entry);
}

static void put_tokens(ml_text *datum, const int32_t *id, size_t n) {
    ml_text text = { 0 }, chunk = { 0 };

    ml_proto_put_bytes(&text, 1, (ml_str){ (const char *)id, n * sizeof *id });
    put_message(&chunk, 1, &text);
    put_message(datum, 1, &chunk);
}

static const int32_t ids[] = { 3, 1, 4, 1, 5 };
static const int64_t targets[] = { 1, 4, 1, 5, 9 };
static const float sampled[] = { -1, -2, -0.5f, -3, -1 };
static const float gains[] = { 0, 1, -2, 0.5f, 1 };

/* A request with one datum, of which the targets have n elements. */
static ml_text request_of(const char *loss, size_t n) {
    ml_text r = { 0 }, datum = { 0 };

    put_tokens(&datum, ids, 2);
    put_tokens(&datum, ids + 2, 3);
    put_input(&datum, "target_tokens", 2, targets, n, sizeof *targets);
    put_input(&datum, "logprobs", 1, sampled, 5, sizeof *sampled);
    put_input(&datum, "advantages", 1, gains, 5, sizeof *gains);
    ml_proto_put_bytes(&r, 1, ml_str_of("s:train:0"));
    ml_proto_put_int(&r, 2, 7);
    put_message(&r, 3, &datum);
    ml_proto_put_bytes(&r, 4, ml_str_of(loss));
    return r;
}

static void request_is_read(void) {
    ml_text r = request_of("ppo", 5);
    ml_pass_request p;
    ml_str id;
    int64_t seq;
    ml_arena a;

    ml_arena_init(&a, "test");
    MUST(ml_pass_address(view(&r), &id, &seq, &err));
    CHECK(ml_str_is(id, "s:train:0") && seq == 7);
    MUST(ml_pass_read(&p, &a, view(&r), &err));
    CHECK(p.n_datum == 1 && p.n_column == 1 && p.datum[0].flat && !p.forward_only);
    CHECK(p.column[0].n == 5 && memcmp(p.column[0].token, ids, sizeof ids) == 0);
    for (int i = 0; i < 5; i++)
        CHECK(p.column[0].target[i] == targets[i] &&
              p.column[0].input[ML_DATUM_ADVANTAGES][i] == gains[i]);
    MUST(ml_pass_check(&p, 10, 5, &err));
    ml_arena_release(&a);
    ml_text_release(&r);
}

/* Every prefix of a request is read or rejected with a sentence. */
static void prefixes_are_rejected(void) {
    ml_text r = request_of("ppo", 5);
    ml_pass_request p;
    ml_arena a;

    for (size_t n = 0; n < r.len; n++) {
        ml_err err = { 0 };
        ml_arena_init(&a, "test");
        if (ml_pass_read(&p, &a, (ml_str){ r.ptr, n }, &err) != ML_OK)
            CHECK(err.msg[0]);
        ml_arena_release(&a);
    }
    ml_text_release(&r);
}

static void refused(const char *loss, size_t n, int64_t n_vocab, const char *why) {
    ml_text r = request_of(loss, n);
    ml_pass_request p;
    ml_pass_loss l;
    ml_err err = { 0 };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "test");
    st = ml_pass_read(&p, &a, view(&r), &err);
    if (st == ML_OK)
        st = ml_pass_check(&p, n_vocab, 100, &err);
    if (st == ML_OK)
        st = ml_pass_loss_of(&l, &p, &err);
    CHECK(st != ML_OK);
    CHECK_HAS(err.msg, why);
    ml_arena_release(&a);
    ml_text_release(&r);
}

static void bad_requests_are_refused(void) {
    refused("ppo", 4, 10, "target_tokens has 4 elements, but model_input has 5");
    refused("ppo", 5, 9, "below 9");
    refused("no_such", 5, 10, "no_such");
}

static void reply_has_the_logprobs(void) {
    ml_text r = request_of("ppo", 5), out = { 0 };
    float lp[] = { -1, -2, -3, -4, -5 }, *all[] = { lp };
    ml_pass_request p;
    ml_proto m;
    ml_proto_field f;
    bool found = false;
    ml_arena a;

    ml_arena_init(&a, "test");
    MUST(ml_pass_read(&p, &a, view(&r), &err));
    ml_pass_reply(&out, &p, all, 2.5);
    m = (ml_proto){ .left = view(&out) };
    while (ml_proto_next(&m, &f))
        if (f.number == 2) /* a record: its bytes have the log-probs, one after the other */
            for (size_t i = 0; i + sizeof lp <= f.bytes.len; i++)
                found = found || memcmp(f.bytes.ptr + i, lp, sizeof lp) == 0;
    CHECK(found && !m.bad);
    ml_arena_release(&a);
    ml_text_release(&out);
    ml_text_release(&r);
}

/* --- losses ----------------------------------------------------------------------- */

/* Derivatives against differences of the loss; cispo's ratio is a constant in them. */
static void derivatives_are_right(void) {
    static const char *const names[] = { "importance_sampling", "ppo", "dro", "gspo" };
    const double h = 1e-3;

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        ml_text r = request_of(names[k], 5);
        float p[] = { -1.5f, -1.9f, -0.6f, -2.5f, -1.05f }, d[5], unused[5];
        ml_pass_request pass;
        ml_pass_loss l;
        ml_arena a;

        ml_arena_init(&a, "test");
        MUST(ml_pass_read(&pass, &a, view(&r), &err));
        MUST(ml_pass_loss_of(&l, &pass, &err));
        ml_pass_loss_at(&l, pass.column, p, d);
        for (int i = 0; i < 5; i++) {
            float at = p[i];
            double up, down;
            p[i] = at + (float)h;
            up = ml_pass_loss_at(&l, pass.column, p, unused);
            p[i] = at - (float)h;
            down = ml_pass_loss_at(&l, pass.column, p, unused);
            p[i] = at;
            if (fabs((up - down) / (2 * h) - (double)d[i]) > 2e-3)
                ml_test_fail(__FILE__, __LINE__, "%s: %g instead of %g", names[k],
                             (double)d[i], (up - down) / (2 * h));
        }
        ml_arena_release(&a);
        ml_text_release(&r);
    }
}

/* --- slots ------------------------------------------------------------------------ */

typedef struct fixture {
    ml_spec spec;
    ml_backend be;
    ml_checkpoint *from;
    ml_weights base;
    ml_lora_slots *slots;
    ml_arena arena;
} fixture;

static void open_fixture(fixture *f) {
    const char *dir = "tests/golden/data/qwen3";

    *f = (fixture){ 0 };
    ml_arena_init(&f->arena, "test");
    MUST(ml_spec_open(&f->spec, dir, &err));
    MUST(ml_checkpoint_open(&f->from, dir, &err));
    MUST(ml_backend_cpu_open(&f->be, 1, NULL, &err));
    ml_spec_lora_insert(&f->spec, NULL, 8);
    MUST(ml_weights_load(&f->base, &f->spec, f->from, ML_WEIGHT_AUTO, &f->be, &f->arena,
                         &err));
    MUST(ml_lora_slots_open(&f->slots,
                            &(ml_lora_slots_opts){ .spec = &f->spec,
                                                   .limits.max_rank = 8,
                                                   .base = &f->base,
                                                   .from = f->from,
                                                   .be = &f->be,
                                                   .max_tokens = 16 },
                            &err));
}

static void close_fixture(fixture *f) {
    ml_lora_slots_close(f->slots);
    ml_weights_close(&f->base);
    ml_checkpoint_close(f->from);
    ml_backend_close(&f->be);
    ml_spec_close(&f->spec);
    ml_arena_release(&f->arena);
}

static ml_lora_slot *new_slot(fixture *f, uint64_t seed) {
    ml_lora_opts o = { .rank = 2 + 2 * (int32_t)(seed % 2),
                       .alpha = 8,
                       .target = "all-linear",
                       .seed = seed };
    ml_lora_slot *s;

    MUST(ml_lora_slot_open(&s, f->slots, &o, &err));
    return s;
}

static ml_status all_tokens(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < io[k].n_response; i++) {
            io[k].loss -= (double)io[k].logprob[i];
            io[k].dlogprob[i] = -1;
        }
    return ML_OK;
}

/* Two passes and a step. */
static void train_once(ml_lora_slot *s, int32_t shift) {
    int32_t token[3][12];
    ml_train_sample x[3];
    ml_slot_step step = {
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 1
    };
    ml_update u;

    for (int32_t k = 0; k < 3; k++) {
        for (int32_t i = 0; i < 12; i++)
            token[k][i] = (7 * i + 5 * k + shift) % 40;
        x[k] = (ml_train_sample){
            .token = token[k], .n_token = 9 + k, .n_response = 8 + k, .rollout = k
        };
    }
    MUST(ml_lora_slot_backward(s, x, 3, all_tokens, NULL, &err));
    MUST(ml_lora_slot_backward(s, x, 1 + shift % 3, all_tokens, NULL, &err));
    MUST(ml_lora_slot_step(s, &step, &u, &err));
    CHECK(u.applied && u.grad_norm > 0);
}

static void save(ml_lora_slot *s, const char *name) {
    MUST(ml_lora_slot_save(s, ml_test_path(name), ml_str_of("{}"), &err));
}

static void same_snapshots(const char *a, const char *b, int step) {
    static const char *const names[] = { ML_LORA_FILE, "trainer.safetensors",
                                         "state.json" };
    char path[2][1200];
    ml_file f[2] = { { 0 } };

    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/iter_%07d/%s", ml_test_path(k ? b : a),
                     step, names[i]);
            MUST(ml_file_map(&f[k], path[k], &err));
        }
        if (!ml_str_eq(f[0].bytes, f[1].bytes))
            ml_test_fail(__FILE__, __LINE__, "%s of %s and %s differ", names[i], a, b);
        ml_file_unmap(&f[0]);
        ml_file_unmap(&f[1]);
    }
}

/* Slots in turn have the bytes of each alone; so has one that continues from its snapshot. */
static void slots_are_independent(void) {
    fixture f;
    ml_lora_slot *s[3], *again;

    open_fixture(&f);
    for (uint64_t k = 0; k < 2; k++) {
        s[k] = new_slot(&f, k);
        for (int i = 0; i < 3; i++)
            train_once(s[k], (int32_t)k + i);
        save(s[k], k ? "alone1" : "alone0");
        ml_lora_slot_close(s[k]);
    }
    s[0] = new_slot(&f, 0);
    s[1] = new_slot(&f, 1);
    for (int i = 0; i < 3; i++) {
        train_once(s[0], i);
        train_once(s[1], 1 + i);
        if (i == 1)
            save(s[0], "half");
    }
    save(s[0], "both0");
    save(s[1], "both1");
    same_snapshots("alone0", "both0", 3);
    same_snapshots("alone1", "both1", 3);
    again = new_slot(&f, 0);
    MUST(ml_lora_slot_load(again, ml_test_path("half"), true, &err));
    train_once(again, 2);
    save(again, "again");
    same_snapshots("alone0", "again", 3);
    ml_lora_slot_close(again);
    ml_lora_slot_close(s[0]);
    ml_lora_slot_close(s[1]);
    close_fixture(&f);
}

/* Plans with their memory pass from slot to slot, and outlive the one that made them. */
static void maker_of_plans_ends(void) {
    fixture f;
    ml_lora_slot *maker, *other;

    open_fixture(&f);
    other = new_slot(&f, 1);
    for (int i = 0; i < 3; i++)
        train_once(other, 1 + i);
    save(other, "alone");
    ml_lora_slot_close(other);
    maker = new_slot(&f, 0);
    train_once(maker, 0);
    other = new_slot(&f, 1);
    train_once(other, 1);
    ml_lora_slot_close(maker);
    maker = new_slot(&f, 0);
    for (int i = 1; i < 3; i++)
        train_once(other, 1 + i);
    save(other, "survivor");
    same_snapshots("alone", "survivor", 3);
    ml_lora_slot_close(maker);
    ml_lora_slot_close(other);
    close_fixture(&f);
}

/* Targets other than the next tokens: with the next tokens, the same bits. */
static void targets_are_scored(void) {
    int32_t token[10], target[9];
    float a[9], b[9], *to[] = { a, b };
    ml_train_sample x[2];
    ml_lora_slot *s;
    fixture f;

    for (int32_t i = 0; i < 10; i++)
        token[i] = (11 * i + 2) % 40;
    memcpy(target, token + 1, sizeof target);
    x[0] = (ml_train_sample){ .token = token, .n_token = 10, .n_response = 9 };
    x[1] = (ml_train_sample){
        .token = token, .n_token = 9, .n_response = 9, .target = target, .rollout = 1
    };
    open_fixture(&f);
    s = new_slot(&f, 1);
    MUST(ml_lora_slot_score(s, x, 2, to, &err));
    CHECK(memcmp(a, b, sizeof a) == 0);
    target[4] = 0;
    MUST(ml_lora_slot_score(s, x, 2, to, &err));
    for (int i = 0; i < 9; i++)
        CHECK((a[i] == b[i]) == (i != 4));
    ml_lora_slot_close(s);
    close_fixture(&f);
}

static const ml_test tests[] = {
    { "the request of a pass is read", request_is_read },
    { "prefixes of a request of a pass are rejected or read", prefixes_are_rejected },
    { "lengths, ids and losses that do not fit are refused", bad_requests_are_refused },
    { "the reply of a pass has the log-probs", reply_has_the_logprobs },
    { "losses of passes have the right derivatives", derivatives_are_right },
    { "adapters in slots train to the bytes of each alone", slots_are_independent },
    { "a slot goes on when the slot that made its plans is closed", maker_of_plans_ends },
    { "a sample's own targets are scored", targets_are_scored },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
