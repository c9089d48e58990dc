#include "rl/data/data_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/log.h"
#include "base/pyrandom.h"

#define FAR ((int64_t)1 << 61) /* the sum of two numbers up to FAR does not overflow */

typedef struct position {
    int64_t sample_offset, epoch_id, sample_group_index, sample_index;
} position;

struct ml_data_source {
    const ml_dataset *ds;
    ml_data_source_opts opts;
    int64_t n_row;
    uint32_t *order; /* [n_row] order of rows in this epoch; NULL: file order */
    position at;
    int64_t *mixed; /* [n_weight] groups that each file has had; NULL: without weights */
    ml_curriculum *curriculum; /* NULL: none */
    ml_text metadata;          /* "metadata" of the loaded state, saved again unchanged */
    ml_text back;              /* array of the returned groups (ml_group) */
};

/* --- order -------------------------------------------------------------------- */

/* Each epoch shuffles the file's order, not the order of the previous epoch. */
static void shuffle(ml_data_source *s) {
    ml_pyrandom r;

    if (!s->order || s->mixed)
        return;
    for (int64_t i = 0; i < s->n_row; i++)
        s->order[i] = (uint32_t)i;
    ml_pyrandom_init(&r, s->opts.seed + s->at.epoch_id);
    ml_pyrandom_shuffle(&r, s->order, (uint32_t)s->n_row);
}

/* --- mixing ------------------------------------------------------------------- */

/* Orders the rows of a file for its current epoch. */
static void shuffle_file(ml_data_source *s, int32_t file) {
    const ml_table_file *f = &s->ds->rows.file[file];
    ml_pyrandom r;

    if (!s->order || !f->n)
        return;
    for (int64_t i = 0; i < f->n; i++)
        s->order[f->begin + i] = (uint32_t)(f->begin + i);
    ml_pyrandom_init(&r, s->opts.seed + s->mixed[file] / f->n);
    ml_pyrandom_shuffle(&r, s->order + f->begin, (uint32_t)f->n);
}

/* The file that lacks most of its share of all groups, the next one included; of equal ones
 * the first. */
static int32_t next_file(const ml_data_source *s) {
    double sum = 0, most = -(double)INFINITY;
    int64_t n = 1;
    int32_t best = 0;

    for (int32_t i = 0; i < s->opts.n_weight; i++) {
        sum += s->opts.weight[i];
        n += s->mixed[i];
    }
    for (int32_t i = 0; i < s->opts.n_weight; i++) {
        double lacks = s->opts.weight[i] / sum * (double)n - (double)s->mixed[i];
        if (lacks > most) {
            most = lacks;
            best = i;
        }
    }
    return best;
}

static int64_t mixed_row(ml_data_source *s) {
    int32_t file = next_file(s);
    const ml_table_file *f = &s->ds->rows.file[file];
    int64_t at;

    if (ml_curriculum_draws(s->curriculum)) {
        s->mixed[file]++;
        return ml_curriculum_draw(s->curriculum, file, s->at.sample_group_index);
    }
    if (s->mixed[file] % f->n == 0)
        shuffle_file(s, file);
    at = f->begin + s->mixed[file]++ % f->n;
    return s->order ? (int64_t)s->order[at] : at;
}

static ml_status check_weights(const ml_data_source_opts *o, const ml_dataset *ds,
                               ml_err *err) {
    if (!o->weight)
        return ML_OK;
    if (!ds || ds->opts.make || o->select || o->n_weight != ds->rows.n_file)
        return ml_fail(err, ML_EUSAGE,
                       "--prompt-data-weights has %d numbers; expected one for each of the "
                       "%d files of --prompt-data, and no --data-source-path",
                       o->n_weight, ds && !ds->opts.make ? ds->rows.n_file : 0);
    for (int32_t i = 0; i < o->n_weight; i++) {
        const char *path = ml_table_file_path(&ds->rows.file[i]);
        if (!(o->weight[i] > 0) || !isfinite(o->weight[i]))
            return ml_fail(
                err, ML_EUSAGE,
                "--prompt-data-weights: the weight of %s is %g; expected a number "
                "above 0",
                path, o->weight[i]);
        if (!ds->rows.file[i].n)
            return ml_fail(
                err, ML_EUSAGE,
                "--prompt-data-weights: no prompt of %s is left: remove the file", path);
    }
    return ML_OK;
}

static ml_status new_curriculum(ml_data_source *s, ml_err *err) {
    const ml_data_source_opts *o = &s->opts;

    if (!ml_curriculum_wanted(&o->curriculum))
        return ML_OK;
    if (!s->n_row || s->ds->opts.make || o->select)
        return ml_fail(err, ML_EUSAGE,
                       "--prompt-sampling and --replay-hard-prompts select rows of "
                       "--prompt-data: give it, and remove --data-source-path");
    return ml_curriculum_new(&s->curriculum, s->ds, o->weight != NULL, &o->curriculum,
                             o->seed, err);
}

ml_curriculum *ml_data_source_curriculum(ml_data_source *s) {
    return s ? s->curriculum : NULL;
}

static ml_status check_opts(const ml_data_source_opts *o, int64_t n_row, ml_err *err) {
    if (o->n_samples_per_prompt < 1)
        return ml_fail(err, ML_EUSAGE, "%d samples per prompt; expected at least 1",
                       o->n_samples_per_prompt);
    if (o->seed > FAR || o->seed < -FAR)
        return ml_fail(err, ML_EUSAGE,
                       "shuffle seed %lld is too large; expected at most 2^61",
                       (long long)o->seed);
    if (o->shuffle && n_row > UINT32_MAX)
        return ml_fail(err, ML_EUNSUP, "cannot shuffle %lld rows; the maximum is %u",
                       (long long)n_row, UINT32_MAX);
    return ML_OK;
}

ml_status ml_data_source_new(ml_data_source **out, const ml_dataset *ds,
                             const ml_data_source_opts *opts, ml_err *err) {
    int64_t n_row = ds ? ds->rows.n : 0;
    ml_status st = check_opts(opts, n_row, err);
    ml_data_source *s;

    if (!st)
        st = check_weights(opts, ds, err);
    if (st)
        return st;
    s = calloc(1, sizeof *s);
    if (s && n_row && opts->shuffle)
        s->order = malloc((size_t)n_row * sizeof *s->order);
    if (s && opts->weight)
        s->mixed = calloc((size_t)opts->n_weight, sizeof *s->mixed);
    if (!s || (n_row && opts->shuffle && !s->order) || (opts->weight && !s->mixed)) {
        if (s)
            free(s->order);
        free(s);
        return ml_fail(err, ML_ENOMEM, "out of memory for the order of %lld prompts",
                       (long long)n_row);
    }
    s->ds = ds;
    s->opts = *opts;
    s->n_row = n_row;
    ml_text_add(&s->metadata, "{}", 2);
    shuffle(s);
    st = new_curriculum(s, err);
    if (st)
        ml_data_source_free(s);
    else
        *out = s;
    return st;
}

void ml_data_source_free(ml_data_source *s) {
    if (!s)
        return;
    ml_text_release(&s->metadata);
    ml_text_release(&s->back);
    free(s->order);
    free(s->mixed);
    ml_curriculum_free(s->curriculum);
    free(s);
}

/* --- groups ------------------------------------------------------------------- */

/* The row that the source extension selects, modulo n_row. */
static int64_t pick_row(const ml_data_source *s) {
    int64_t row =
        s->opts.select->select(s->at.sample_group_index, s->n_row, s->opts.seed) % s->n_row;
    return row < 0 ? row + s->n_row : row;
}

static ml_group new_group(ml_data_source *s, int64_t row) {
    ml_group g = { .row = row,
                   .group_index = s->at.sample_group_index++,
                   .first_index = s->at.sample_index,
                   .n_sample = s->opts.n_samples_per_prompt };
    s->at.sample_index += g.n_sample;
    return g;
}

static int64_t next_row(ml_data_source *s, int64_t at) {
    return s->opts.select ? pick_row(s)
           : s->mixed     ? mixed_row(s)
           : ml_curriculum_draws(s->curriculum)
               ? ml_curriculum_draw(s->curriculum, 0, s->at.sample_group_index)
           : s->order ? (int64_t)s->order[at]
                      : at;
}

/* Hands out the prompts at positions [begin, end) of the epoch. */
static int64_t hand_out(ml_data_source *s, ml_group *out, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        out[i - begin] = new_group(s, next_row(s, i));
    return begin < end ? end - begin : 0;
}

/* A request beyond the end of the epoch wraps once.  Groups that would need a second wrap
 * are not handed out but counted in the offset, which is then beyond the end. */
static int64_t get_prompts(ml_data_source *s, ml_group *out, int64_t n) {
    int64_t n_rest;

    if (s->at.sample_offset + n <= s->n_row) {
        s->at.sample_offset += n;
        return hand_out(s, out, s->at.sample_offset - n, s->at.sample_offset);
    }
    n_rest = hand_out(s, out, s->at.sample_offset, s->n_row);
    s->at.epoch_id++;
    shuffle(s);
    s->at.sample_offset = n - n_rest;
    return n_rest +
           hand_out(s, out + n_rest, 0, n - n_rest < s->n_row ? n - n_rest : s->n_row);
}

int64_t ml_data_source_n_buffered(const ml_data_source *s) {
    return (int64_t)(s->back.len / sizeof(ml_group));
}

void ml_data_source_add(ml_data_source *s, const ml_group *group, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        ML_BUG_IF(group[i].n_sample != s->opts.n_samples_per_prompt);
        ml_text_add(&s->back, (const char *)&group[i], sizeof group[i]);
    }
}

static int64_t get_given_back(ml_data_source *s, ml_group *out, int64_t n) {
    int64_t n_back = ml_data_source_n_buffered(s);
    size_t bytes;

    if (n > n_back)
        n = n_back;
    if (n == 0)
        return 0;
    bytes = (size_t)n * sizeof *out;
    memcpy(out, s->back.ptr, bytes);
    s->back.len -= bytes;
    memmove(s->back.ptr, s->back.ptr + bytes, s->back.len);
    return n;
}

/* Failed prompts take the place of others, which come later: none is skipped. */
static int64_t get_failed(ml_data_source *s, ml_group *out, int64_t n) {
    if (!s->curriculum)
        return 0;
    n = ml_curriculum_replays(s->curriculum, s->at.sample_group_index, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = new_group(s, ml_curriculum_replay(s->curriculum));
    return n;
}

int64_t ml_data_source_get(ml_data_source *s, ml_group *out, int64_t n) {
    int64_t n_back, n_new;

    ML_BUG_IF(n < 0 || n > FAR);
    n_back = get_given_back(s, out, n);
    n_back += get_failed(s, out + n_back, n - n_back);
    if (n_back == n)
        return n;
    out += n_back;
    if (s->ds && !s->ds->opts.make)
        return n_back + get_prompts(s, out, n - n_back);
    n_new = s->opts.pull ? s->opts.pull(n - n_back) : n - n_back;
    for (int64_t i = 0; i < n_new; i++)
        out[i] = new_group(s, s->ds ? s->at.sample_group_index : -1);
    return n_back + n_new;
}

int64_t ml_data_source_next_group(const ml_data_source *s) {
    return s->at.sample_group_index;
}

/* --- the saved position ------------------------------------------------------- */

void ml_data_source_save(const ml_data_source *s, ml_text *out) {
    ml_text_printf(out,
                   "{\"sample_offset\": %lld, \"epoch_id\": %lld, \"sample_group_index\": "
                   "%lld, \"sample_index\": %lld, \"metadata\": ",
                   (long long)s->at.sample_offset, (long long)s->at.epoch_id,
                   (long long)s->at.sample_group_index, (long long)s->at.sample_index);
    ml_text_add(out, s->metadata.ptr, s->metadata.len);
    ml_text_printf(out, ", \"rows\": %lld", (long long)s->n_row);
    for (int32_t i = 0; s->mixed && i < s->opts.n_weight; i++)
        ml_text_printf(out, "%s%lld", i ? ", " : ", \"mixed\": [", (long long)s->mixed[i]);
    ml_text_printf(out, s->mixed ? "]" : "");
    if (s->curriculum) {
        ml_text_printf(out, ", \"curriculum\": ");
        ml_curriculum_save(s->curriculum, out);
    }
    ml_text_printf(out, "}");
}

static ml_status read_count(int64_t *out, const ml_json *state, const char *key,
                            const char *name, ml_err *err) {
    const ml_json *v = ml_json_get(state, key);

    if (!ml_json_i64(v, out) || *out < 0 || *out > FAR)
        return ml_fail(err, ML_EFORMAT,
                       "%s: \"%s\" of the data source's state is %s; expected a count",
                       name, key,
                       !v                          ? "missing"
                       : v->type == ML_JSON_NUMBER ? "out of range"
                                                   : ml_json_what(v));
    return ML_OK;
}

static ml_status read_position(position *out, int64_t *n_row, const ml_json *state,
                               const char *name, ml_err *err) {
    ml_status st = read_count(&out->sample_offset, state, "sample_offset", name, err);

    if (!st)
        st = read_count(&out->epoch_id, state, "epoch_id", name, err);
    if (!st)
        st = read_count(&out->sample_group_index, state, "sample_group_index", name, err);
    if (!st)
        st = read_count(&out->sample_index, state, "sample_index", name, err);
    if (!st)
        st = read_count(n_row, state, "rows", name, err);
    return st;
}

/* The groups that each file has had, and so the order of its epoch.  A state without them is of
 * a run without weights: the files begin with their first epoch. */
static ml_status read_mixed(ml_data_source *s, const ml_json *v, const char *name,
                            ml_err *err) {
    int32_t i = 0;

    if (!s->mixed || !v)
        return ML_OK;
    if (v->type != ML_JSON_ARRAY || v->n != s->opts.n_weight)
        return ml_fail(err, ML_EFORMAT,
                       "%s: \"mixed\" of the data source's state is %s of %d; expected the "
                       "groups of %d files",
                       name, ml_json_what(v), v->n, s->opts.n_weight);
    for (const ml_json *e = v->child; e; e = e->next) {
        int64_t n = -1;
        if (!ml_json_i64(e, &n) || n < 0 || n > FAR)
            return ml_fail(
                err, ML_EFORMAT,
                "%s: \"mixed\" of the data source's state has %s; expected counts", name,
                ml_json_what(e));
    }
    for (const ml_json *e = v->child; e; e = e->next)
        (void)ml_json_i64(e, &s->mixed[i++]);
    for (i = 0; i < s->opts.n_weight; i++)
        shuffle_file(s, i);
    return ML_OK;
}

ml_status ml_data_source_load(ml_data_source *s, ml_str state, const char *name,
                              ml_err *err) {
    const ml_json *doc, *metadata = NULL, *curriculum;
    position at;
    int64_t n_row;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "state of a data source");
    st = ml_json_parse(&doc, &a, state, name, err);
    if (!st)
        st = read_position(&at, &n_row, doc, name, err);
    if (st)
        goto out;
    metadata = ml_json_get(doc, "metadata");
    if (!metadata || metadata->type != ML_JSON_OBJECT) {
        st =
            ml_fail(err, ML_EFORMAT,
                    "%s: \"metadata\" of the data source's state is %s; expected an object",
                    name, metadata ? ml_json_what(metadata) : "missing");
        goto out;
    }
    if (n_row != s->n_row)
        ml_log(ML_LOG_WARN,
               "%s: saved with %lld prompts, but the data now has %lld: the order of this "
               "epoch differs, and prompts may be repeated or skipped",
               name, (long long)n_row, (long long)s->n_row);
    st = read_mixed(s, ml_json_get(doc, "mixed"), name, err);
    curriculum = ml_json_get(doc, "curriculum");
    if (!st && s->curriculum && curriculum)
        st = ml_curriculum_load(s->curriculum, curriculum, name, err);
    if (st)
        goto out;
    s->at = at;
    s->metadata.len = 0;
    ml_text_add(&s->metadata, state.ptr + metadata->begin, metadata->end - metadata->begin);
    shuffle(s);
out:
    ml_arena_release(&a);
    return st;
}
