#include "run/memory_record.h"

#include <malloc.h>
#include <stdio.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/json_out.h"
#include "train/memory.h"

static void write_bytes(ml_json_out *o, const char *key, size_t bytes) {
    ml_json_key(o, key);
    ml_json_unsigned(o, bytes);
}

static ml_status write_buffers(ml_json_out *o, ml_train_run *run, ml_err *err) {
    ml_memory_request req;
    ml_memory plan;
    ml_status st;

    ml_train_run_memory(run, &req);
    st = ml_memory_plan(&plan, &req, err);
    if (st != ML_OK)
        return st;
    ml_json_key(o, "buffers");
    ml_json_begin(o, '{');
    for (int i = 0; i < plan.n; i++)
        write_bytes(o, plan.row[i].what, plan.row[i].bytes);
    ml_json_end(o, '}');
    write_bytes(o, "total", plan.total);
    return ML_OK;
}

/* Reads lines "Rss:   1234 kB"; writes an empty object if the kernel lacks the file. */
static void write_kernel(ml_json_out *o) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[200], name[60];
    unsigned long long kb;

    ml_json_key(o, "kernel");
    ml_json_begin(o, '{');
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%59[^:]: %llu kB", name, &kb) == 2)
            write_bytes(o, name, (size_t)kb * 1024);
    ml_json_end(o, '}');
    if (f)
        fclose(f);
}

static void write_heap(ml_json_out *o) {
    struct mallinfo2 m = mallinfo2();

    ml_json_key(o, "heap");
    ml_json_begin(o, '{');
    write_bytes(o, "in_use", m.uordblks);
    write_bytes(o, "free", m.fordblks);
    write_bytes(o, "mapped", m.hblkhd);
    ml_json_end(o, '}');
}

static ml_status write_view(ml_text *to, ml_memory_view view, ml_train_run *run,
                            int64_t rollout, ml_err *err) {
    ml_json_out o = { .to = to };
    ml_status st = ML_OK;

    ml_json_begin(&o, '{');
    ml_json_key(&o, "rollout");
    ml_json_int(&o, rollout);
    write_bytes(&o, "resident", ml_memory_resident());
    write_bytes(&o, "peak", ml_train_run_peak(run));
    if (run->be.dev->peak)
        write_bytes(&o, "device_peak", run->be.dev->peak(run->be.dev));
    if (view == ML_MEMORY_BUFFERS) {
        st = write_buffers(&o, run, err);
    } else {
        write_kernel(&o);
        write_heap(&o);
    }
    ml_json_end(&o, '}');
    ml_text_add(to, "\n", 1);
    return st;
}

ml_status ml_memory_record_on(void *memory_record, const ml_loop_event *e, ml_err *err) {
    ml_memory_record *m = memory_record;
    const ml_run_ranks *ranks = &m->run->opts.ranks;
    ml_text text = { 0 }, path = { 0 };
    ml_status st;

    if (e->kind != ML_ON_ROLLOUT_END || (m->n_rollout && m->n_done >= m->n_rollout))
        return ML_OK;
    m->n_done++;
    st = ml_dir_make(m->dir, err);
    if (st == ML_OK)
        st = write_view(&text, m->view, m->run, e->rollout, err);
    ml_text_printf(&path, "%s/memory_snapshot_rollout_%lld", m->dir, (long long)e->rollout);
    if (!ml_run_ranks_first(ranks))
        ml_text_printf(&path, "_rank_%d", (int)ranks->world->rank);
    ml_text_printf(&path, ".json");
    if (st == ML_OK)
        st = ml_file_replace(path.ptr, (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&path);
    ml_text_release(&text);
    return st;
}
