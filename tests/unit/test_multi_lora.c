/* The parts of the multi-LoRA service: adapters and their states, configurations, and the
 * tenants of a generator.  tests/e2e/multi_lora.py tests the service. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "gen/tenants.h"
#include "run/adapter_registry.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* --- configurations ------------------------------------------------------------------- */

static ml_status read_config(ml_adapter_config *out, const char *json, ml_arena *a,
                             const char **member, ml_err *err) {
    const ml_json *v;
    ml_status st = ml_json_parse(&v, a, ml_str_of(json), "config", err);

    return st == ML_OK ? ml_adapter_config_read(out, v, a, member, err) : st;
}

static void refused(const char *json, const char *of, const char *why) {
    ml_adapter_config c;
    const char *member = NULL;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(read_config(&c, json, &a, &member, &err) == ML_EFORMAT);
    if (of)
        CHECK(member && strcmp(member, of) == 0);
    if (!strstr(err.msg, why))
        ml_test_fail(__FILE__, __LINE__, "%s: %s", json, err.msg);
    ml_arena_release(&a);
}

static void configs_are_read(void) {
    ml_adapter_config c;
    const char *member;
    ml_arena a;

    ml_arena_init(&a, "test");
    MUST(read_config(&c,
                     "{\"data\": \"d\", \"rank\": 4, \"alpha\": 0.5, \"save\": null, "
                     "\"metadata\": {}, \"num_step\": 9}",
                     &a, &member, &err));
    CHECK(strcmp(c.data, "d") == 0 && c.rank == 4 && c.alpha == 0.5 && !c.save);
    CHECK(strcmp(c.input_key, "text") == 0 && c.num_step == 9 && c.num_epoch == 0);
    ml_arena_release(&a);
    refused("[]", NULL, "is an object");
    refused("{\"rank\": 4}", "data", "\"data\" is required");
    refused("{\"data\": 4}", "data", "expected a string");
    refused("{\"data\": \"d\", \"rank\": 1.5}", "rank", "expected a whole number");
    refused("{\"data\": \"d\", \"lr\": 1}", "lr", "not a field");
    refused("{\"data\": \"d\", \"metadata\": {\"a\": 1}}", "metadata", "not supported");
}

static ml_run_opts flags_of_service(void) {
    ml_run_opts o = { .save = "/s", .rollout_batch_size = 8 };

    o.lora.rank = 16;
    o.lora.alpha = 32;
    o.source.n_samples_per_prompt = 4;
    o.trainer.batch.global_batch_size = 32;
    return o;
}

static void must_not_resolve(ml_adapter_config c, const ml_run_opts *flags,
                             const char *why) {
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(ml_adapter_resolve(&c, &a, "x", flags, &err) == ML_EUSAGE);
    if (!strstr(err.msg, why))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_arena_release(&a);
}

static void flags_are_defaults(void) {
    ml_run_opts flags = flags_of_service();
    ml_adapter_config c = { .data = ml_test_dir(), .rm_type = "math" }, d = c;
    ml_arena a;

    ml_arena_init(&a, "test");
    MUST(ml_adapter_resolve(&d, &a, "x", &flags, &err));
    CHECK(d.rank == 16 && d.alpha == 32.0 && d.rollout_batch_size == 8);
    CHECK(d.n_samples_per_prompt == 4 && strcmp(d.save, "/s/adapters/x") == 0);
    d = c;
    d.rank = 17;
    must_not_resolve(d, &flags, "exceeds the allocated maximum rank 16");
    d = c;
    d.rollout_batch_size = 33;
    must_not_resolve(d, &flags, "more than 128 samples per step");
    d = c;
    d.num_epoch = -1;
    must_not_resolve(d, &flags, "num_epoch must be a positive integer");
    d = c;
    d.data = ml_test_path("none");
    must_not_resolve(d, &flags, "does not exist");
    d = c;
    d.rm_type = NULL;
    must_not_resolve(d, &flags, "no reward config");
    flags.save = NULL;
    must_not_resolve(c, &flags, "no save dir");
    ml_arena_release(&a);
}

/* --- states ------------------------------------------------------------------------------ */

static ml_adapter_record *add(ml_adapter_registry *r, const char *name, const char *save) {
    ml_adapter_config c = { .data = "d", .save = save, .rank = 4, .alpha = 8 };
    ml_adapter_record *x = NULL;

    MUST(ml_adapter_register(r, &x, name, &c, &err));
    return x;
}

static void must_not_add(ml_adapter_registry *r, const char *name, const char *save,
                         ml_status st, const char *why) {
    ml_adapter_config c = { .data = "d", .save = save };
    ml_adapter_record *x;
    ml_err err = { 0 };

    CHECK(ml_adapter_register(r, &x, name, &c, &err) == st);
    if (!strstr(err.msg, why))
        ml_test_fail(__FILE__, __LINE__, "%s: %s", name, err.msg);
}

static void slots_are_reused(void) {
    ml_adapter_registry r;
    ml_adapter_record *a, *b;
    const char *id;

    MUST(ml_adapter_registry_open(&r, 2, NULL, &err));
    a = add(&r, "a", "/none/a");
    CHECK(a->slot == 0 && a->state == ML_ADAPTER_PENDING);
    must_not_add(&r, "a", "/none/x", ML_EUSAGE, "already registered");
    must_not_add(&r, "..", "/none/x", ML_EUSAGE, "is invalid");
    must_not_add(&r, "a b", "/none/x", ML_EUSAGE, "is invalid");
    must_not_add(&r, "x", "/none/a", ML_EUSAGE, "already used by adapter 'a'");
    b = add(&r, "b", "/none/b");
    CHECK(b->slot == 1);
    must_not_add(&r, "c", "/none/c", ML_ENOMEM, "No free adapter slots (max 2)");
    a->state = ML_ADAPTER_RETIRING;
    must_not_add(&r, "a", "/none/x", ML_EUSAGE, "still cleaning up");
    ml_adapter_complete(&r, a);
    CHECK(ml_adapter_find(&r, ml_str_of("a")) == a && !ml_adapter_live(a));
    CHECK(add(&r, "c", "/none/a")->slot == 0);
    id = ml_adapter_find(&r, ml_str_of("c"))->id;
    CHECK(strlen(id) == 32 && strcmp(id, b->id) != 0);
    ml_adapter_forget(&r, ml_adapter_find(&r, ml_str_of("c")));
    CHECK(add(&r, "a", "/none/a")->slot == 0); /* the completed record is gone */
    ml_adapter_registry_close(&r);
}

static void registry_is_kept(void) {
    const char *file = ml_test_path("adapter_runs.json");
    ml_adapter_registry r;
    ml_adapter_record *x;

    MUST(ml_adapter_registry_open(&r, 3, file, &err));
    x = add(&r, "done", "/none/done");
    x->error = "a \"sentence\"";
    ml_adapter_complete(&r, x);
    add(&r, "left", "/none/left")->state = ML_ADAPTER_RETIRING;
    x = add(&r, "on", "/none/on");
    x->state = ML_ADAPTER_ACTIVE;
    x->last_step = 7;
    r.version[1] = 5;
    MUST(ml_adapter_registry_save(&r, &err));
    ml_adapter_registry_close(&r);

    MUST(ml_adapter_registry_open(&r, 3, file, &err));
    x = ml_adapter_find(&r, ml_str_of("done"));
    CHECK(x && !ml_adapter_live(x) && strcmp(x->error, "a \"sentence\"") == 0);
    x = ml_adapter_find(&r, ml_str_of("left"));
    CHECK(x && !ml_adapter_live(x));
    x = ml_adapter_find(&r, ml_str_of("on"));
    CHECK(x && x->state == ML_ADAPTER_PENDING && x->slot == 1 && x->last_step == 7);
    CHECK(strcmp(x->config.save, "/none/on") == 0 && x->config.rank == 4);
    CHECK(r.version[1] == 5);
    CHECK(add(&r, "new", "/none/new")->slot == 0);
    ml_adapter_registry_close(&r);
}

static void smaller_service_says_so(void) {
    const char *file = ml_test_path("adapter_runs.json");
    ml_adapter_registry r;
    ml_err why = { 0 };

    MUST(ml_adapter_registry_open(&r, 2, file, &err));
    add(&r, "a", "/none/a");
    add(&r, "b", "/none/b");
    MUST(ml_adapter_registry_save(&r, &err));
    ml_adapter_registry_close(&r);
    CHECK(ml_adapter_registry_open(&r, 1, file, &why) == ML_EUSAGE);
    CHECK_HAS(why.msg, "set --multi-lora-n-adapters to at least 2");
    ml_adapter_registry_close(&r);
    MUST(ml_file_replace(file, ml_str_of("{\"adapters\": 3}"), &err));
    CHECK(ml_adapter_registry_open(&r, 1, file, &why) == ML_EFORMAT);
    CHECK_HAS(why.msg, "expected a list \"adapters\"");
    ml_adapter_registry_close(&r);
}

/* --- tenants ------------------------------------------------------------------------------ */

/* A generator that records what it is asked for. */
static struct {
    ml_gen gen;
    ml_gen_request request;
    ml_gen_fn *fn[8];
    void *ud[8];
    uint64_t n, aborted;
    int n_pause;
    bool paused;
    ml_step_end_fn *step_end;
    void *step_ud;
} fake;

static ml_status fake_submit(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                             uint64_t *ticket, ml_err *err) {
    (void)g;
    if (r->max_new < 0)
        return ml_fail(err, ML_EUSAGE, "no");
    fake.request = *r;
    fake.fn[fake.n] = fn;
    fake.ud[fake.n] = ud;
    *ticket = ++fake.n;
    return ML_OK;
}

static void fake_abort(ml_gen *g, uint64_t ticket) {
    (void)g;
    fake.aborted |= 1u << ticket;
}

static void fake_pause(ml_gen *g) {
    (void)g;
    fake.n_pause++;
    fake.paused = true;
}

static void fake_resume(ml_gen *g) {
    (void)g;
    fake.paused = false;
}

static void fake_on_step_end(ml_gen *g, ml_step_end_fn *fn, void *ud) {
    (void)g;
    fake.step_end = fn;
    fake.step_ud = ud;
}

static uint64_t seen_version[4];
static int n_seen;

static void see(void *ud, const ml_gen_update *u) {
    (void)ud;
    CHECK(u->answer.n == 3 && u->version == u->answer.version[2]);
    seen_version[n_seen++] = u->answer.version[0];
}

static void finish(uint64_t ticket) {
    const uint64_t version[3] = { 99, 99, 99 };

    fake.fn[ticket - 1](fake.ud[ticket - 1],
                        &(ml_gen_update){ .ticket = ticket,
                                          .answer = { .n = 3, .version = version },
                                          .version = 99,
                                          .finish = ML_FINISH_LENGTH });
}

static void count(void *ud) {
    ++*(int *)ud;
}

static void open_fake(ml_tenants **all, ml_gen *t[2]) {
    fake.gen = (ml_gen){ .submit = fake_submit,
                         .abort = fake_abort,
                         .pause = fake_pause,
                         .resume = fake_resume,
                         .on_step_end = fake_on_step_end };
    MUST(ml_tenants_open(all, &fake.gen, &err));
    for (int32_t i = 0; i < 2; i++) {
        MUST(ml_tenant_gen_open(&t[i], *all, 3 + i, &err));
        ml_tenant_gen_renew(t[i], 10 + (uint64_t)i);
    }
}

static void tenants_have_their_adapters(void) {
    ml_tenants *all;
    ml_gen *t[2];
    ml_gen_request r = { .max_new = 1 };
    int32_t id[3];
    uint64_t ticket;
    ml_err why = { 0 };

    open_fake(&all, t);
    MUST(t[0]->submit(t[0], &r, see, NULL, &ticket, &err));
    id[0] = fake.request.adapter_id;
    CHECK(ticket == 1 && fake.request.adapter == 4);
    MUST(t[1]->submit(t[1], &r, see, NULL, &ticket, &err));
    id[1] = fake.request.adapter_id;
    CHECK(ticket == 2 && fake.request.adapter == 5);
    finish(1);
    ml_tenant_gen_renew(t[0], 12);
    MUST(t[0]->submit(t[0], &r, see, NULL, &ticket, &err));
    id[2] = fake.request.adapter_id;
    CHECK(id[0] != id[1] && id[0] != id[2] && id[1] != id[2] && id[0] && id[1] && id[2]);
    finish(2);
    finish(3);
    CHECK(n_seen == 3 && seen_version[0] == 10 && seen_version[1] == 11 &&
          seen_version[2] == 12);
    r.max_new = -1;
    CHECK(t[0]->submit(t[0], &r, see, NULL, &ticket, &why) == ML_EUSAGE);
    t[0]->close(t[0]);
    t[1]->close(t[1]);
    ml_tenants_close(all);
}

static void tenants_do_not_disturb_others(void) {
    ml_tenants *all;
    ml_gen *t[2];
    int n[2] = { 0 };
    uint64_t ticket;
    ml_gen_request r = { .max_new = 1 };

    open_fake(&all, t);
    for (int i = 0; i < 4; i++)
        MUST(t[i % 2]->submit(t[i % 2], &r, see, NULL, &ticket, &err));
    t[1]->abort_all(t[1]);
    CHECK(fake.aborted == (1u << 2 | 1u << 4));
    t[0]->pause(t[0]);
    t[1]->pause(t[1]);
    t[1]->resume(t[1]);
    CHECK(fake.paused && fake.n_pause == 1);
    t[0]->resume(t[0]);
    CHECK(!fake.paused);
    t[0]->on_step_end(t[0], count, &n[0]);
    t[1]->on_step_end(t[1], count, &n[1]);
    fake.step_end(fake.step_ud);
    t[0]->on_step_end(t[0], NULL, NULL);
    fake.step_end(fake.step_ud);
    CHECK(n[0] == 1 && n[1] == 2);
    for (uint64_t i = 1; i <= 4; i++)
        finish(i);
    t[0]->close(t[0]);
    t[1]->close(t[1]);
    ml_tenants_close(all);
    CHECK(!fake.step_end);
}

static const ml_test tests[] = {
    { "an adapter's configuration is read, or refused with the member's name",
      configs_are_read },
    { "flags are the defaults of an adapter, and its limits", flags_are_defaults },
    { "names, directories and slots of adapters are used once at a time",
      slots_are_reused },
    { "the registry of adapters is kept in its file", registry_is_kept },
    { "a registry that does not fit the service is refused", smaller_service_says_so },
    { "requests of a tenant have its adapter and version", tenants_have_their_adapters },
    { "aborts, pauses and step ends of a tenant are its own",
      tenants_do_not_disturb_others },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
