/* teachers.h - the teachers of on-policy distillation that score as generators: servers, or
 * an engine in this process.
 *
 * A teacher in memory with the architecture of the actor is scored by the trainer
 * (ml_learner.teacher); one of another architecture, or whose top-k tokens are compared, by
 * an engine of its own, on rank 0.
 *
 * thread: the command's. */
#ifndef ML_RUN_TEACHERS_H
#define ML_RUN_TEACHERS_H

#include "engine/engine.h"
#include "rl/learn/distill.h"
#include "run/run.h"

typedef struct ml_run_teachers {
    ml_arena arena;
    ml_train_run *run;   /* NULL: not open */
    ml_teacher *teacher; /* [n] once started */
    int32_t n;
    /* of the engine */
    ml_spec spec;
    ml_backend be;
    ml_engine_opts engine;
    ml_encoder *encoder; /* of teachers' prompts; NULL: those of the students */
} ml_run_teachers;

/* Finds --opd-teacher-load, and who scores with it: teacher_dir and teacher_engine. */
ml_status ml_run_teachers_choose(ml_train_run *r, ml_err *err);

/* Checks the metadata of all rows and the engine's model, and adds its memory to the plan.  context: tokens of the longest
 * sample; 0: not known. */
ml_status ml_run_teachers_open(ml_run_teachers *t, ml_train_run *r, int32_t context,
                               ml_err *err);
/* Connects to servers, or loads the weights. */
ml_status ml_run_teachers_start(ml_run_teachers *t, ml_err *err);
/* How the started teachers score.  student: the engine of the run, which is its own teacher
 * with --opd-type self. */
ml_distill ml_run_teachers_distill(ml_run_teachers *t, ml_gen *student);
void ml_run_teachers_close(ml_run_teachers *t); /* zeros are allowed */

#endif
