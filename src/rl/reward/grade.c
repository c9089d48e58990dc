#include "rl/reward/grade.h"

#include <string.h>

#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"

static bool is_named(const miles_extension *ext, ml_str name) {
    return ext->kind == MILES_REWARD &&
           (ml_str_is(name, ext->name) || (ext->alias && ml_str_is(name, ext->alias)));
}

static ml_status unknown(ml_str name, ml_err *err) {
    ml_text known = { 0 };
    ml_status st;

    for (const miles_extension *const *ext = ml_builtins; *ext; ext++)
        if ((*ext)->kind == MILES_REWARD)
            ml_text_printf(&known, "%s%s", known.len ? ", " : "", (*ext)->name);
    st = ml_fail(
        err, ML_EUSAGE,
        "unknown reward '%.*s': expected remote_rm, reward_model, judge, ifbench, %s, or "
        "one of these "
        "with the prefix boxed_; custom rewards use --custom-rm-path",
        (int)name.len, name.ptr, known.ptr);
    ml_text_release(&known);
    return st;
}

ml_status ml_grader_find(ml_grader *out, const char *name, ml_err *err) {
    ml_str s = ml_str_trim(ml_str_of(name));
    bool boxed = ml_str_first(s, "boxed_") == 0 && s.len > 0;
    ml_str bare = boxed ? ml_str_from(s, 6) : s;

    for (const miles_extension *const *ext = ml_builtins; *ext; ext++)
        if (is_named(*ext, bare)) {
            /* The extension is the first member of its struct. */
            *out = (ml_grader){ (const void *)*ext, boxed };
            return ML_OK;
        }
    return unknown(s, err);
}

/* Selects the box: graders of mathematics handle nested boxes themselves, f1 and gpqa get
 * the box that Miles finds, the others get the contents of the last complete box. */
static ml_str box_of(const miles_reward *ext, ml_str response) {
    bool math = ext == &ml_reward_math || ext == &ml_reward_deepscaler ||
                ext == &ml_reward_gemma_math || ext == &ml_reward_dapo;
    bool as_miles = ext == &ml_reward_f1 || ext == &ml_reward_gpqa;
    ml_str box;

    if (math       ? ml_answer_outer_box(response, &box)
        : as_miles ? ml_answer_last_box(response, &box)
                   : ml_answer_box(response, &box))
        return box;
    return (ml_str){ "", 0 };
}

int ml_grader_run(const ml_grader *g, const miles_reward_in *in, miles_reward_out *out,
                  miles_error *err) {
    miles_reward_in inside = *in;
    ml_str box;

    *out = (miles_reward_out){ .size = sizeof *out };
    *err = (miles_error){ "" };
    if (!g->boxed)
        return g->ext->run(in, out, err);
    if (!in->response)
        return ml_reward_fail(err, "the response is missing");
    box = box_of(g->ext, ml_response(in));
    inside.response = box.ptr;
    inside.response_len = box.len;
    inside.boxed = true;
    return g->ext->run(&inside, out, err);
}
