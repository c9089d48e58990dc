#include "rl/memory_record.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"

static ml_status write_buffers(ml_text *out, ml_train_run *run, ml_err *err) {
    ml_memory_ask ask;
    ml_memory plan;
    ml_status st;

    ml_train_run_memory(run, &ask);
    st = ml_memory_plan(&plan, &ask, err);
    if (st != ML_OK)
        return st;
    ml_text_printf(out, ", \"buffers\": {");
    for (int i = 0; i < plan.n; i++) {
        ml_text_printf(out, "%s", i ? ", " : "");
        ml_json_quote(out, ml_str_of(plan.row[i].what));
        ml_text_printf(out, ": %zu", plan.row[i].bytes);
    }
    ml_text_printf(out, "}, \"engine\": %zu, \"total\": %zu", run->opts.engine_bytes,
                   plan.total + run->opts.engine_bytes);
    return ML_OK;
}

/* Lines "Rss:   1234 kB"; a kernel without the file says nothing. */
static void write_kernel(ml_text *out) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[200], name[60];
    unsigned long long kb;

    ml_text_printf(out, ", \"kernel\": {");
    for (const char *comma = ""; f && fgets(line, sizeof line, f);)
        if (sscanf(line, "%59[^:]: %llu kB", name, &kb) == 2) {
            ml_text_printf(out, "%s\"%s\": %llu", comma, name, kb * 1024);
            comma = ", ";
        }
    ml_text_printf(out, "}");
    if (f)
        fclose(f);
}

static void write_heap(ml_text *out) {
    struct mallinfo2 m = mallinfo2();
    ml_text_printf(out, ", \"heap\": {\"in_use\": %zu, \"free\": %zu, \"mapped\": %zu}",
                   m.uordblks, m.fordblks, m.hblkhd);
}

ml_status ml_memory_record_round(ml_memory_record *m, ml_train_run *run, int64_t rollout,
                                 ml_err *err) {
    ml_text text = { 0 }, path = { 0 };
    ml_status st;

    if (!m->dir || (m->n_round && m->n_done >= m->n_round))
        return ML_OK;
    m->n_done++;
    ml_text_printf(&text, "{\"rollout\": %lld, \"resident\": %zu, \"peak\": %zu",
                   (long long)rollout, ml_memory_resident(), ml_memory_peak());
    st = ml_dir_make(m->dir, err);
    if (st == ML_OK && m->view == ML_MEMORY_BUFFERS)
        st = write_buffers(&text, run, err);
    if (st == ML_OK && m->view == ML_MEMORY_PROCESS) {
        write_kernel(&text);
        write_heap(&text);
    }
    ml_text_printf(&text, "}\n");
    ml_text_printf(&path, "%s/memory_snapshot_rollout_%lld.json", m->dir,
                   (long long)rollout);
    if (st == ML_OK)
        st = ml_file_replace(path.ptr, (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&path);
    ml_text_release(&text);
    return st;
}
