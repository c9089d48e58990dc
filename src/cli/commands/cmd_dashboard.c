/* miles dashboard: runs in the browser. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/commands/drain.h"
#include "cli/keys.h"
#include "dash/dash.h"

typedef struct dashboard_job {
    ml_loop *loop;
    ml_dash *dash;
    ml_drain drain;
    ml_server_keys keys;
} dashboard_job;

static void end(void *loop) {
    ml_loop_stop(loop);
}

static ml_status run(dashboard_job *j, const ml_config *c, ml_err *err) {
    ml_dash_opts o = c->dash;
    ml_status st =
        ml_access_of(&o.access, &j->keys, c, (const bool[ML_N_LIMIT]){ false }, err);

    o.dir = c->dash_runs.word;
    o.n_dir = c->dash_runs.n;
    o.tokenizer = c->run.hf_checkpoint;
    if (st == ML_OK)
        st = ml_loop_new(&j->loop, err);
    if (st == ML_OK)
        st = ml_dash_open(&j->dash, j->loop, &o, err);
    if (st == ML_OK)
        st = ml_drain_on_signals(&j->drain, j->loop, end, j->loop, err);
    if (st != ML_OK)
        return st;
    printf("dashboard of %d run%s at %s://%s:%d%s\n", o.n_dir, o.n_dir == 1 ? "" : "s",
           ml_server_scheme(&j->keys), o.host, ml_dash_port(j->dash),
           o.access.api_key || o.access.admin_key ? "" : " (read-only)");
    fflush(stdout);
    ml_loop_run(j->loop);
    return ML_OK;
}

ml_status ml_cmd_dashboard(const ml_config *c, ml_err *err) {
    dashboard_job j = { 0 };
    ml_status st = run(&j, c, err);

    ml_dash_close(j.dash);
    if (j.loop)
        ml_loop_free(j.loop);
    ml_server_keys_release(&j.keys);
    return st;
}
